// SPDX-License-Identifier: Apache-2.0
// The public header stands alone, as C11 and as C++17 (this file is compiled as both under pedantic
// flags), and its sizes are what callers compiled against: a struct that changes here is an ABI
// change.
#include "loader/kda.h"

#ifdef __cplusplus
#define CHECK(condition) static_assert(condition, #condition)
#else
#define CHECK(condition) _Static_assert(condition, #condition)
#endif
CHECK(sizeof(kda_tensor) == 8 + 4 + 4 + 4 * 8 + 4 * 8);
CHECK(sizeof(kda_device) == 32);
CHECK(sizeof(kda_plan) == 512);
CHECK(KDA_E_NO_MEMORY == 80 && KDA_E_DIGEST == 43 && KDA_E_NOT_PREPARED == 22 && KDA_E_NAME == 9);

int main(void) { return kda_status_name(KDA_OK) == NULL; }
