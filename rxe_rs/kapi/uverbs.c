// SPDX-License-Identifier: GPL-2.0
/*
 * Driver-specific methods of the uverbs ioctl (uapi/rxe_rs.h).
 */
#define UVERBS_MODULE_NAME rxe_rs

#include "bindings_helper.h"
#include <rdma/uverbs_named_ioctl.h>

/* The sizes are part of the user ABI. */
static_assert(sizeof(struct rxe_rs_mr_add) == 40);
static_assert(sizeof(struct rxe_rs_mr_remove) == 32);
static_assert(sizeof(struct rxe_rs_mr_state) == 64);
static_assert(sizeof(struct rxe_rs_mr_tie) == 16);

static const struct rxe_rs_mr_methods *rxe_rs_mr_methods;

/**
 * rxe_rs_uverbs_setup() - set the functions that implement the methods
 * @methods: the functions; must be valid as long as the module is loaded
 *
 * All devices of the module share the functions.
 *
 * Context: Any context.
 */
void rxe_rs_uverbs_setup(const struct rxe_rs_mr_methods *methods)
{
	WRITE_ONCE(rxe_rs_mr_methods, methods);
}

/*
 * Copies the request, and clears the caller's state attribute before the region is changed: a
 * change must not happen if its result cannot be reported. uverbs holds the region locked for the
 * whole call, so it is neither re-registered nor deregistered at the same time.
 */
static int rxe_rs_mr_begin(struct uverbs_attr_bundle *attrs, const char *operation,
			   void *request, size_t size, struct rxe_rs_mr_state *state)
{
	struct ib_mr *mr = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_MR);
	int err;

	err = _uverbs_copy_from_or_zero(request, attrs, RXE_RS_ATTR_REQUEST, size);
	if (!err && state) {
		memset(state, 0, sizeof(*state));
		err = uverbs_copy_to_struct_or_zero(attrs, RXE_RS_ATTR_STATE, state,
						    sizeof(*state));
	}
	return rxe_rs_device_checked(mr->device, operation, err);
}

/* Copies the state to the caller. */
static int rxe_rs_mr_end(struct uverbs_attr_bundle *attrs, const char *operation,
			 const struct rxe_rs_mr_state *state)
{
	struct ib_mr *mr = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_MR);
	int err = uverbs_copy_to_struct_or_zero(attrs, RXE_RS_ATTR_STATE, state, sizeof(*state));

	return rxe_rs_device_checked(mr->device, operation, err);
}

static int UVERBS_HANDLER(RXE_RS_METHOD_MR_ADD)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_MR);
	struct rxe_rs_mr_state state;
	struct rxe_rs_mr_add request;

	return rxe_rs_mr_begin(attrs, "mr_add", &request, sizeof(request), &state) ?:
	       READ_ONCE(rxe_rs_mr_methods)->add(mr, &request, &state) ?:
	       rxe_rs_mr_end(attrs, "mr_add", &state);
}

static int UVERBS_HANDLER(RXE_RS_METHOD_MR_REMOVE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_MR);
	struct rxe_rs_mr_remove request;
	struct rxe_rs_mr_state state;

	return rxe_rs_mr_begin(attrs, "mr_remove", &request, sizeof(request), &state) ?:
	       READ_ONCE(rxe_rs_mr_methods)->remove(mr, &request, &state) ?:
	       rxe_rs_mr_end(attrs, "mr_remove", &state);
}

static int UVERBS_HANDLER(RXE_RS_METHOD_MR_TIE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_MR);
	struct ib_qp *qp = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_QP);
	struct rxe_rs_mr_tie request;

	return rxe_rs_mr_begin(attrs, "mr_tie", &request, sizeof(request), NULL) ?:
	       READ_ONCE(rxe_rs_mr_methods)->tie(mr, qp, &request);
}

DECLARE_UVERBS_NAMED_METHOD(RXE_RS_METHOD_MR_ADD,
			    UVERBS_ATTR_IDR(RXE_RS_ATTR_MR, UVERBS_OBJECT_MR,
					    UVERBS_ACCESS_WRITE, UA_MANDATORY),
			    UVERBS_ATTR_PTR_IN(RXE_RS_ATTR_REQUEST,
					       UVERBS_ATTR_STRUCT(struct rxe_rs_mr_add, flags),
					       UA_MANDATORY),
			    UVERBS_ATTR_PTR_OUT(RXE_RS_ATTR_STATE,
						UVERBS_ATTR_STRUCT(struct rxe_rs_mr_state, flags),
						UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(RXE_RS_METHOD_MR_REMOVE,
			    UVERBS_ATTR_IDR(RXE_RS_ATTR_MR, UVERBS_OBJECT_MR,
					    UVERBS_ACCESS_WRITE, UA_MANDATORY),
			    UVERBS_ATTR_PTR_IN(RXE_RS_ATTR_REQUEST,
					       UVERBS_ATTR_STRUCT(struct rxe_rs_mr_remove, flags),
					       UA_MANDATORY),
			    UVERBS_ATTR_PTR_OUT(RXE_RS_ATTR_STATE,
						UVERBS_ATTR_STRUCT(struct rxe_rs_mr_state, flags),
						UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(RXE_RS_METHOD_MR_TIE,
			    UVERBS_ATTR_IDR(RXE_RS_ATTR_MR, UVERBS_OBJECT_MR,
					    UVERBS_ACCESS_WRITE, UA_MANDATORY),
			    UVERBS_ATTR_PTR_IN(RXE_RS_ATTR_REQUEST,
					       UVERBS_ATTR_STRUCT(struct rxe_rs_mr_tie, reserved),
					       UA_MANDATORY),
			    UVERBS_ATTR_IDR(RXE_RS_ATTR_QP, UVERBS_OBJECT_QP,
					    UVERBS_ACCESS_READ, UA_MANDATORY));

ADD_UVERBS_METHODS(rxe_rs_mr_object, UVERBS_OBJECT_MR,
		   &UVERBS_METHOD(RXE_RS_METHOD_MR_ADD),
		   &UVERBS_METHOD(RXE_RS_METHOD_MR_REMOVE),
		   &UVERBS_METHOD(RXE_RS_METHOD_MR_TIE));

const struct uapi_definition rxe_rs_uverbs_methods[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_MR, &rxe_rs_mr_object),
	{},
};
