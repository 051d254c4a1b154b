// SPDX-License-Identifier: GPL-2.0
//! Number types of the InfiniBand architecture, each with its own arithmetic.
