// SPDX-License-Identifier: Apache-2.0
// kda.hpp stands alone and beside cuda.h, before or after it; its handles move and close, and its
// results say what the C calls say. With WITH_CUDA the toolkit's header is included, else the two
// typedefs that both have are repeated as it spells them.
#ifdef WITH_CUDA
#include <cuda.h>
#else
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
#endif
#include "loader/kda.hpp"

#include <cstring>
#include <type_traits>

static_assert(!std::is_copy_constructible<kda::Bundle>::value, "a handle has one owner");
static_assert(!std::is_copy_assignable<kda::Context>::value, "a handle has one owner");
static_assert(std::is_nothrow_move_constructible<kda::Context>::value, "moves do not throw");
static_assert(std::is_copy_constructible<kda::Plan>::value, "a plan is a value");

static bool views()
{
    const kda_tensor compact = kda::tensor(nullptr, KDA_BF16, {2, 3, 4});
    const kda_tensor strided = kda::tensor(nullptr, KDA_F32, {2, 3}, {7, 1});
    const kda_tensor deep = kda::tensor(nullptr, KDA_I32, {1, 1, 1, 1, 1});
    return compact.rank == 3 && compact.stride[0] == 12 && compact.stride[1] == 4 &&
           compact.stride[2] == 1 && compact.stride[3] == 0 && strided.rank == 2 &&
           strided.stride[0] == 7 && strided.stride[1] == 1 && deep.rank == 5;
}

static bool handles()
{
    auto opened = kda::Bundle::builtin();
    if (!opened || !opened->verify()) return false;
    kda::Bundle bundle = std::move(*opened);
    if (opened->get() || !bundle.get()) return false;
    auto again = kda::Bundle::builtin();
    if (!again || again->id() != bundle.id()) return false;
    *again = std::move(bundle);

    kda_device device{};
    kda_problem problem{};
    device.cc_major = 10;
    device.cuda_version = 13000;
    device.sm_count = 148;
    problem.op = KDA_OP_PACKED;
    problem.gate = KDA_GATE_LOWER_BOUND;
    problem.tokens = 1;
    problem.rows = 8;
    problem.heads = problem.value_heads = 12;
    auto route = again->route(device, problem);
    if (!route || std::strcmp(route->body, "packed_t1_tile8")) return false;
    device.cc_major = 1;
    auto refused = again->route(device, problem);
    return !refused && refused.error().status == KDA_E_NO_ROUTE && refused.error().text[0];
}

static bool failures()
{
    auto missing = kda::Bundle::file("/no/such/bundle");
    alignas(64) static const char bytes[64] = "no bundle";
    auto wrong = kda::Bundle::bytes(bytes, sizeof(bytes));
    return !missing && missing.error().status == KDA_E_IO && !wrong &&
           wrong.error().status == KDA_E_FORMAT;
}

int main() { return views() && handles() && failures() ? 0 : 1; }
