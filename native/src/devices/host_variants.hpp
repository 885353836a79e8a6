// SPDX-License-Identifier: Apache-2.0
// One variant of the exchange kernels for the host; included with HP_SIZE, HP_ELEM, HP_WIRE, HP_OP and HP_VARIANT set.
#include "../../kernels/exchange.hpp"
#undef HP_SIZE
#undef HP_ELEM
#undef HP_WIRE
#undef HP_OP
#undef HP_VARIANT
