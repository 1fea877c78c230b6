// SPDX-License-Identifier: Apache-2.0
// One decode step from C++17: a row of ones through the recurrence, and what a refusal looks like.
//   c++ -std=c++17 hello.cc $(pkg-config --cflags --libs kda) -lcuda
#include <kda.hpp>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

// What this example needs of the CUDA driver; a program that includes cuda.h has it.
extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(CUcontext *out, int device);
int cuCtxSetCurrent(CUcontext context);
int cuMemAlloc_v2(unsigned long long *out, size_t size);
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size);
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size);
}

static void must(bool good, const char *text)
{
    if (good) return;
    std::fprintf(stderr, "hello: %s\n", text);
    std::exit(1);
}

// Device memory that holds `count` times the bf16 that `x` is exactly.
static void *filled(int64_t count, float x)
{
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    const std::vector<uint16_t> values(static_cast<size_t>(count),
                                       static_cast<uint16_t>(bits >> 16));
    unsigned long long address = 0;
    must(!cuMemAlloc_v2(&address, values.size() * 2), "no device memory");
    must(!cuMemcpyHtoD_v2(address, values.data(), values.size() * 2), "no copy to the device");
    return reinterpret_cast<void *>(static_cast<uintptr_t>(address));
}

int main()
{
    CUcontext cuda = nullptr;
    must(!cuInit(0) && !cuDevicePrimaryCtxRetain(&cuda, 0) && !cuCtxSetCurrent(cuda), "no device");
    auto bundle = kda::Bundle::builtin();
    must(bool(bundle), bundle.error().text);
    auto context = kda::Context::create(*bundle);
    must(bool(context), context.error().text);
    auto prepared = context->prepare();
    must(bool(prepared), prepared.error().text);

    const int64_t rows = 2, heads = 1, value_heads = 2, values = rows * value_heads * 128;
    const float scale = 0.08838834764831845f, beta = 0.5f;
    void *const out = filled(values, 9);
    kda_recurrent_args args{};
    args.q = kda::tensor(filled(rows * heads * 128, 1), KDA_BF16, {rows, 1, heads, 128});
    args.k = kda::tensor(filled(rows * heads * 128, 1), KDA_BF16, {rows, 1, heads, 128});
    args.v = kda::tensor(filled(values, 1), KDA_BF16, {rows, 1, value_heads, 128});
    args.g = kda::tensor(filled(values, 0), KDA_BF16, {rows, 1, value_heads, 128});
    args.beta = kda::tensor(filled(rows * value_heads, beta), KDA_BF16, {rows, 1, value_heads});
    args.state = kda::tensor(filled(values * 128, 0), KDA_BF16, {rows, value_heads, 128, 128});
    args.out = kda::tensor(out, KDA_BF16, {rows, 1, value_heads, 128});
    args.scale = scale;
    auto launched = context->launch(args, nullptr);
    must(bool(launched), launched.error().text);

    // From a zero state a token of ones gives scale*beta*v.
    std::vector<uint16_t> got(static_cast<size_t>(values));
    must(!cuMemcpyDtoH_v2(got.data(), reinterpret_cast<uintptr_t>(out), got.size() * 2), "no copy");
    for (uint16_t half : got) {
        const uint32_t bits = static_cast<uint32_t>(half) << 16;
        float x;
        std::memcpy(&x, &bits, sizeof(x));
        must(std::fabs(x - scale * beta) < 5e-3f * scale * beta, "wrong output");
    }
    std::printf("hello: %.4f\n", static_cast<double>(scale * beta));

    args.g.stride[0] = args.g.stride[1] = 258;
    auto refused = context->launch(args, nullptr);
    must(!refused, "a gate stride of 258 was accepted");
    std::printf("refused: %s: %s\n", kda_status_name(refused.error().status), refused.error().text);
    return 0;
}
