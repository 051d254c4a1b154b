// SPDX-License-Identifier: GPL-2.0
#include "bindings_helper.h"
