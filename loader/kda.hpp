// SPDX-License-Identifier: Apache-2.0
//
// kda.h for C++17: handles that close themselves, results instead of out-parameters. Nothing
// throws, and nothing is decided here: every rule, status and text is the C call's, and its
// argument structs are used as they are. Works without exceptions, beside cuda.h and without it.
//
//     auto bundle = kda::Bundle::builtin();
//     if (!bundle) return fail(bundle.error().text);
//     auto context = kda::Context::create(*bundle);
//     if (!context) return fail(context.error().text);
//     kda_recurrent_args args{};
//     args.q = kda::tensor(q, KDA_BF16, {rows, 1, heads, 128});
//     ...
//     if (auto launched = context->launch(args, stream); !launched) return
//     fail(launched.error().text);
#ifndef KDA_HPP
#define KDA_HPP

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <utility>

#include "kda.h"

namespace kda
{

// What a call gave, or why it failed. Ask before use: the value of a failed call, and the error of
// a successful one, are not there.
template <class Value> class [[nodiscard]] Result
{
  public:
    explicit operator bool() const noexcept { return value_.has_value(); }
    Value &operator*() noexcept { return *value_; }
    const Value &operator*() const noexcept { return *value_; }
    Value *operator->() noexcept { return &*value_; }
    const Value *operator->() const noexcept { return &*value_; }
    const kda_error &error() const noexcept { return error_; }

    // `call` takes a kda_error and gives the status; on success the value is made by `make`.
    template <class Call, class Make> static Result of(Call &&call, Make &&make) noexcept
    {
        Result result;
        if (call(&result.error_) == KDA_OK) result.value_.emplace(make());
        return result;
    }

  private:
    Result() noexcept {}
    std::optional<Value> value_;
    kda_error error_;  // written on failure only
};

template <> class [[nodiscard]] Result<void>
{
  public:
    explicit operator bool() const noexcept { return status_ == KDA_OK; }
    const kda_error &error() const noexcept { return error_; }

    template <class Call> static Result of(Call &&call) noexcept
    {
        Result result;
        result.status_ = call(&result.error_);
        return result;
    }

  private:
    Result() noexcept {}
    kda_status status_;
    kda_error error_;  // written on failure only
};

// A view of device memory. Without strides it is compact. More than KDA_MAX_RANK extents are
// refused by the call that gets the view.
inline kda_tensor tensor(void *data, kda_dtype type, std::initializer_list<int64_t> extents,
                         std::initializer_list<int64_t> strides = {}) noexcept
{
    kda_tensor view{};
    view.data = data;
    view.dtype = type;
    view.rank = static_cast<uint32_t>(extents.size());
    uint32_t i = 0;
    for (int64_t extent : extents)
        if (i < KDA_MAX_RANK) view.extent[i++] = extent;
    uint64_t compact = 1;  // wraps only for extents that every call refuses
    while (i-- > 0) {
        view.stride[i] = static_cast<int64_t>(compact);
        compact *= static_cast<uint64_t>(view.extent[i]);
    }
    i = 0;
    for (int64_t stride : strides)
        if (i < KDA_MAX_RANK) view.stride[i++] = stride;
    return view;
}

// An opened bundle. Must outlive its contexts.
class Bundle
{
  public:
    static Result<Bundle> builtin() noexcept
    {
        return open_by(
            [](kda_bundle **out, kda_error *err) { return kda_bundle_open_builtin(out, err); });
    }
    static Result<Bundle> file(const char *path) noexcept
    {
        return open_by([path](kda_bundle **out, kda_error *err) {
            return kda_bundle_open_file(path, out, err);
        });
    }
    // Borrows the bytes.
    static Result<Bundle> bytes(const void *data, size_t size) noexcept
    {
        return open_by([data, size](kda_bundle **out, kda_error *err) {
            return kda_bundle_open(data, size, out, err);
        });
    }
    Bundle(Bundle &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Bundle &operator=(Bundle &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Bundle() { kda_bundle_close(&handle_); }

    std::array<uint8_t, 32> id() const noexcept
    {
        std::array<uint8_t, 32> out;
        kda_bundle_id(handle_, out.data());
        return out;
    }
    Result<void> verify() const noexcept
    {
        return Result<void>::of([&](kda_error *err) { return kda_bundle_verify(handle_, err); });
    }
    Result<kda_route_result> route(const kda_device &device,
                                   const kda_problem &problem) const noexcept
    {
        kda_route_result out;
        return Result<kda_route_result>::of(
            [&](kda_error *err) { return kda_route(handle_, &device, &problem, &out, err); },
            [&] { return out; });
    }
    const kda_bundle *get() const noexcept { return handle_; }

  private:
    explicit Bundle(kda_bundle *handle) noexcept : handle_(handle) {}
    template <class Open> static Result<Bundle> open_by(Open open) noexcept
    {
        kda_bundle *handle = nullptr;
        return Result<Bundle>::of([&](kda_error *err) { return open(&handle, err); },
                                  [&] { return Bundle(handle); });
    }
    kda_bundle *handle_;
};

// A validated and bound call. A plain value, valid while its context is open.
class Plan
{
  public:
    Result<void> launch(CUstream stream) const noexcept
    {
        return Result<void>::of(
            [&](kda_error *err) { return kda_plan_launch(&plan_, stream, err); });
    }

  private:
    friend class Context;
    explicit Plan(const kda_plan &plan) noexcept : plan_(plan) {}
    kda_plan plan_;
};

// A bundle bound to one CUDA context. Any number of threads may prepare, plan and launch with it.
class Context
{
  public:
    // The calling thread's current CUDA context if `cuda` is null.
    static Result<Context> create(const Bundle &bundle, CUcontext cuda = nullptr,
                                  const kda_device *overrides = nullptr) noexcept
    {
        kda_context *handle = nullptr;
        return Result<Context>::of(
            [&](kda_error *err) {
                return kda_context_create(bundle.get(), cuda, overrides, &handle, err);
            },
            [&] { return Context(handle); });
    }
    Context(Context &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Context &operator=(Context &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Context() { kda_context_close(&handle_); }

    kda_device device() const noexcept { return kda_context_device(handle_); }

    // Every image that the device could be routed to.
    Result<void> prepare() noexcept { return prepare_for(nullptr); }
    Result<void> prepare(const kda_problem &problem) noexcept { return prepare_for(&problem); }

    Result<void> launch(const kda_recurrent_args &args, CUstream stream) noexcept
    {
        return call(kda_recurrent, args, stream);
    }
    Result<void> launch(const kda_packed_args &args, CUstream stream) noexcept
    {
        return call(kda_packed, args, stream);
    }
    Result<void> launch(const kda_fused_args &args, CUstream stream) noexcept
    {
        return call(kda_fused, args, stream);
    }
    Result<void> launch(const kda_verify_args &args, CUstream stream) noexcept
    {
        return call(kda_verify, args, stream);
    }
    Result<void> launch(const kda_commit_args &args, CUstream stream) noexcept
    {
        return call(kda_commit, args, stream);
    }

    // `body` and `target` force a body and a target; null: as routed.
    Result<Plan> plan(const kda_recurrent_args &args, const char *body = nullptr,
                      const char *target = nullptr) noexcept
    {
        return plan_by(kda_recurrent_plan, args, body, target);
    }
    Result<Plan> plan(const kda_packed_args &args, const char *body = nullptr,
                      const char *target = nullptr) noexcept
    {
        return plan_by(kda_packed_plan, args, body, target);
    }
    Result<Plan> plan(const kda_fused_args &args, const char *body = nullptr,
                      const char *target = nullptr) noexcept
    {
        return plan_by(kda_fused_plan, args, body, target);
    }
    Result<Plan> plan(const kda_verify_args &args, const char *body = nullptr,
                      const char *target = nullptr) noexcept
    {
        return plan_by(kda_verify_plan, args, body, target);
    }
    Result<Plan> plan(const kda_commit_args &args, const char *body = nullptr,
                      const char *target = nullptr) noexcept
    {
        return plan_by(kda_commit_plan, args, body, target);
    }
    kda_context *get() const noexcept { return handle_; }

  private:
    explicit Context(kda_context *handle) noexcept : handle_(handle) {}
    Result<void> prepare_for(const kda_problem *problem) noexcept
    {
        return Result<void>::of(
            [&](kda_error *err) { return kda_context_prepare(handle_, problem, err); });
    }
    template <class Args>
    Result<void> call(kda_status (*function)(kda_context *, const Args *, CUstream, kda_error *),
                      const Args &args, CUstream stream) noexcept
    {
        return Result<void>::of(
            [&](kda_error *err) { return function(handle_, &args, stream, err); });
    }
    template <class Args>
    Result<Plan> plan_by(kda_status (*function)(kda_context *, const Args *, const char *,
                                                const char *, kda_plan *, kda_error *),
                         const Args &args, const char *body, const char *target) noexcept
    {
        kda_plan out;
        return Result<Plan>::of(
            [&](kda_error *err) { return function(handle_, &args, body, target, &out, err); },
            [&] { return Plan(out); });
    }
    kda_context *handle_;
};

}  // namespace kda
#endif
