// SPDX-License-Identifier: GPL-2.0
/*
 * C side of the kapi crate: methods of our own on the uverbs ioctl (uapi/rxe_rs.h).
 */
#define UVERBS_MODULE_NAME rxe_rs

#include "bindings_helper.h"
#include <rdma/uverbs_named_ioctl.h>

/* Users depend on them. */
static_assert(sizeof(struct rxe_rs_mr_add) == 40);
static_assert(sizeof(struct rxe_rs_mr_remove) == 32);
static_assert(sizeof(struct rxe_rs_mr_state) == 64);
static_assert(sizeof(struct rxe_rs_mr_tie) == 16);

static struct rxe_rs_mr_methods rxe_rs_mr_methods;

/* The same functions for all devices. */
void rxe_rs_uverbs_setup(const struct rxe_rs_mr_methods *methods)
{
	WRITE_ONCE(rxe_rs_mr_methods.add, methods->add);
	WRITE_ONCE(rxe_rs_mr_methods.remove, methods->remove);
	WRITE_ONCE(rxe_rs_mr_methods.tie, methods->tie);
}

/*
 * What the caller cannot be told must not happen: the answer is written once before anything
 * changes. The region is locked for this call, so it is neither registered anew nor deregistered.
 */
static int rxe_rs_mr_begin(struct uverbs_attr_bundle *attrs, struct rxe_rs_mr_state *state)
{
	memset(state, 0, sizeof(*state));
	return uverbs_copy_to_struct_or_zero(attrs, RXE_RS_ATTR_STATE, state, sizeof(*state));
}

static int UVERBS_HANDLER(RXE_RS_METHOD_MR_ADD)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_MR);
	struct rxe_rs_mr_state state;
	struct rxe_rs_mr_add request;
	int err;

	err = _uverbs_copy_from_or_zero(&request, attrs, RXE_RS_ATTR_REQUEST, sizeof(request)) ?:
	      rxe_rs_mr_begin(attrs, &state) ?:
	      READ_ONCE(rxe_rs_mr_methods.add)(mr, &request, &state);
	return err ?: uverbs_copy_to_struct_or_zero(attrs, RXE_RS_ATTR_STATE, &state, sizeof(state));
}

static int UVERBS_HANDLER(RXE_RS_METHOD_MR_REMOVE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_MR);
	struct rxe_rs_mr_remove request;
	struct rxe_rs_mr_state state;
	int err;

	err = _uverbs_copy_from_or_zero(&request, attrs, RXE_RS_ATTR_REQUEST, sizeof(request)) ?:
	      rxe_rs_mr_begin(attrs, &state) ?:
	      READ_ONCE(rxe_rs_mr_methods.remove)(mr, &request, &state);
	return err ?: uverbs_copy_to_struct_or_zero(attrs, RXE_RS_ATTR_STATE, &state, sizeof(state));
}

static int UVERBS_HANDLER(RXE_RS_METHOD_MR_TIE)(struct uverbs_attr_bundle *attrs)
{
	struct ib_mr *mr = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_MR);
	struct ib_qp *qp = uverbs_attr_get_obj(attrs, RXE_RS_ATTR_QP);
	struct rxe_rs_mr_tie request;

	return _uverbs_copy_from_or_zero(&request, attrs, RXE_RS_ATTR_REQUEST, sizeof(request)) ?:
	       READ_ONCE(rxe_rs_mr_methods.tie)(mr, qp, &request);
}

DECLARE_UVERBS_NAMED_METHOD(
	RXE_RS_METHOD_MR_ADD,
	UVERBS_ATTR_IDR(RXE_RS_ATTR_MR, UVERBS_OBJECT_MR, UVERBS_ACCESS_WRITE, UA_MANDATORY),
	UVERBS_ATTR_PTR_IN(RXE_RS_ATTR_REQUEST, UVERBS_ATTR_STRUCT(struct rxe_rs_mr_add, flags),
			   UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(RXE_RS_ATTR_STATE, UVERBS_ATTR_STRUCT(struct rxe_rs_mr_state, flags),
			    UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(
	RXE_RS_METHOD_MR_REMOVE,
	UVERBS_ATTR_IDR(RXE_RS_ATTR_MR, UVERBS_OBJECT_MR, UVERBS_ACCESS_WRITE, UA_MANDATORY),
	UVERBS_ATTR_PTR_IN(RXE_RS_ATTR_REQUEST, UVERBS_ATTR_STRUCT(struct rxe_rs_mr_remove, flags),
			   UA_MANDATORY),
	UVERBS_ATTR_PTR_OUT(RXE_RS_ATTR_STATE, UVERBS_ATTR_STRUCT(struct rxe_rs_mr_state, flags),
			    UA_MANDATORY));

DECLARE_UVERBS_NAMED_METHOD(
	RXE_RS_METHOD_MR_TIE,
	UVERBS_ATTR_IDR(RXE_RS_ATTR_MR, UVERBS_OBJECT_MR, UVERBS_ACCESS_WRITE, UA_MANDATORY),
	UVERBS_ATTR_PTR_IN(RXE_RS_ATTR_REQUEST, UVERBS_ATTR_STRUCT(struct rxe_rs_mr_tie, reserved),
			   UA_MANDATORY),
	UVERBS_ATTR_IDR(RXE_RS_ATTR_QP, UVERBS_OBJECT_QP, UVERBS_ACCESS_READ, UA_MANDATORY));

ADD_UVERBS_METHODS(rxe_rs_mr_object, UVERBS_OBJECT_MR,
		   &UVERBS_METHOD(RXE_RS_METHOD_MR_ADD),
		   &UVERBS_METHOD(RXE_RS_METHOD_MR_REMOVE),
		   &UVERBS_METHOD(RXE_RS_METHOD_MR_TIE));

const struct uapi_definition rxe_rs_uverbs_methods[] = {
	UAPI_DEF_CHAIN_OBJ_TREE(UVERBS_OBJECT_MR, &rxe_rs_mr_object),
	{},
};
