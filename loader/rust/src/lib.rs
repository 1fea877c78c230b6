// SPDX-License-Identifier: Apache-2.0
//! Decode kernels of Kimi Delta Attention (KDA), compiled ahead of time: a safe front over libkda.
//!
//! Handles close themselves, statuses are [`Error`]s, and a [`Context`] cannot outlive its
//! [`Bundle`]. Every rule, status and text is the C library's; `loader/kda.h` is the reference for
//! shapes, strides and alignments. What the compiler cannot know is whether an address is device
//! memory, so making a [`Tensor`] is `unsafe` and using one is not.
//!
//! ```no_run
//! # fn main() -> Result<(), kda::Error> {
//! # let (q, stream) = (0u64, kda::Stream::default());
//! let bundle = kda::Bundle::builtin()?;
//! let context = kda::Context::new(&bundle)?;
//! let mut args = kda::Recurrent::default();
//! args.q = unsafe { kda::Tensor::new(q, kda::Dtype::Bf16, &[32, 1, 16, 128]) };
//! context.recurrent(&args, stream)?;
//! # Ok(()) }
//! ```
#![warn(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod ffi;

use std::ffi::CString;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::raw::{c_char, c_int};
use std::path::Path;
use std::{fmt, ptr};

pub use ffi::{CUcontext, CUstream};

/// A stream to launch on. The default is the default stream of the context that is current.
#[derive(Clone, Copy)]
pub struct Stream(CUstream);

impl Default for Stream {
    fn default() -> Stream {
        Stream(ptr::null_mut())
    }
}

impl Stream {
    /// A stream of the driver.
    ///
    /// # Safety
    /// The handle must be a live stream of the context that it is used with.
    pub unsafe fn new(handle: CUstream) -> Stream {
        Stream(handle)
    }
}

// ------------------------------------------------------------------------------------------ errors

/// Why a call was refused or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// One of the `KDA_E_*` numbers of [`ffi`].
    pub status: c_int,
    /// The CUresult of the driver call that failed, else 0.
    pub cuda: c_int,
    /// One line: the operation, what was found, what is allowed.
    pub text: String,
}

impl Error {
    /// The name of the status, `KDA_E_SHAPE` for example.
    pub fn name(&self) -> &'static str {
        // The library's names are static.
        unsafe { text(ffi::kda_status_name(self.status)) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.name(), self.text)
    }
}

impl std::error::Error for Error {}

/// What a call gave, or why it failed.
pub type Result<T> = std::result::Result<T, Error>;

// A borrowed string of the library; valid as long as its owner, which the caller names as 'a.
unsafe fn text<'a>(string: *const c_char) -> &'a str {
    unsafe { std::ffi::CStr::from_ptr(string) }.to_str().unwrap_or("?")
}

fn check(call: impl FnOnce(*mut ffi::kda_error) -> c_int) -> Result<()> {
    let mut error = MaybeUninit::<ffi::kda_error>::uninit();
    if call(error.as_mut_ptr()) == ffi::KDA_OK {
        return Ok(());
    }
    // A call that fails has written its error.
    let error = unsafe { error.assume_init_ref() };
    Err(Error {
        status: error.status,
        cuda: error.cuda,
        text: unsafe { text(error.text.as_ptr()) }.to_owned(),
    })
}

// ----------------------------------------------------------------------------------------- tensors

/// The element type of a tensor. The last two are refused by every operation, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Dtype {
    Bf16 = ffi::KDA_BF16,
    F32 = ffi::KDA_F32,
    I32 = ffi::KDA_I32,
    F16 = ffi::KDA_F16,
    I64 = ffi::KDA_I64,
}

/// A view of device memory; the default is an omitted tensor.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Tensor(ffi::kda_tensor);

impl Default for Tensor {
    fn default() -> Tensor {
        Tensor(ffi::kda_tensor {
            data: ptr::null_mut(),
            dtype: 0,
            rank: 0,
            extent: [0; ffi::KDA_MAX_RANK],
            stride: [0; ffi::KDA_MAX_RANK],
        })
    }
}

impl Tensor {
    /// A compact view. More than four extents are refused by the call that gets the view.
    ///
    /// # Safety
    /// `address` must be device memory of these extents for as long as work that uses the view is
    /// queued, for a call with `pdl` already while the work before it on the stream runs, and nothing
    /// may conflict with what the kernel reads and writes there.
    pub unsafe fn new(address: u64, dtype: Dtype, extents: &[i64]) -> Tensor {
        let mut view = Tensor::default();
        view.0.data = address as usize as *mut _;
        view.0.dtype = dtype as c_int;
        view.0.rank = extents.len() as u32;
        let mut compact = 1i64;
        for i in (0..extents.len().min(ffi::KDA_MAX_RANK)).rev() {
            view.0.extent[i] = extents[i];
            view.0.stride[i] = compact;
            // Wraps only for extents that every call refuses.
            compact = compact.wrapping_mul(extents[i]);
        }
        view
    }

    /// The same view with other strides, in elements.
    ///
    /// # Safety
    /// As for [`Tensor::new`], of the memory that the strides reach.
    pub unsafe fn with_strides(mut self, strides: &[i64]) -> Tensor {
        for (to, from) in self.0.stride.iter_mut().zip(strides) {
            *to = *from;
        }
        self
    }
}

/// How the log decay comes from the gate input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Gate {
    Precomputed = ffi::KDA_GATE_PRECOMPUTED,
    LowerBound = ffi::KDA_GATE_LOWER_BOUND,
    Softplus = ffi::KDA_GATE_SOFTPLUS,
}

/// What the caller of fused decode asserts about its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[allow(missing_docs)]
pub enum Mode {
    PositiveUnique = ffi::KDA_MODE_POSITIVE_UNIQUE,
    UniqueOrNull = ffi::KDA_MODE_UNIQUE_OR_NULL,
    RepeatedPositive = ffi::KDA_MODE_REPEATED_POSITIVE,
}

/// 128^-0.5, the usual scale of q.
pub const SCALE: f32 = 0.088_388_346;

// The arguments of an operation: its tensors by their names in C, then the rest: a field, its type and
// default, and the members of the C struct that it gives.
macro_rules! operation {
    ($(#[$doc:meta])* $name:ident, $c:ident, [$($tensor:ident),*],
     [$($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr => $($member:ident = $value:expr),*);*]) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $tensor: Tensor,)*
            $($(#[$field_doc])* pub $field: $type,)*
            /// Programmatic dependent launch: the kernel may start while the one before it on the stream
            /// still runs, see `KDA_FLAG_PDL` in kda.h.
            pub pdl: bool,
        }
        impl Default for $name {
            fn default() -> $name {
                $name { $($tensor: Tensor::default(),)* $($field: $default,)* pdl: false }
            }
        }
        impl $name {
            fn plain(&self) -> ffi::$c {
                // All zero is a value of every member.
                let mut args: ffi::$c = unsafe { std::mem::zeroed() };
                $(args.$tensor = self.$tensor.0;)*
                $(let $field = self.$field; $(args.$member = $value;)*)*
                if self.pdl {
                    args.flags |= ffi::KDA_FLAG_PDL;
                }
                args
            }
        }
    };
}

fn speculative(tokens: Option<i32>) -> u32 {
    tokens.map_or(0, |_| ffi::KDA_FLAG_SPECULATIVE)
}

operation!(
    /// Recurrent decode of 1 to 6 tokens per row.
    Recurrent, kda_recurrent_args,
    [q, k, v, g, beta, a_log, dt_bias, state, out, ssm_state_indices, cu_seqlens, num_accepted_tokens, initial_state],
    [gate: Gate = Gate::Precomputed => gate = gate as c_int;
     /// T - 1; None for one token.
     num_spec_tokens: Option<i32> = None => num_spec_tokens = num_spec_tokens.unwrap_or(0),
                                            flags = speculative(num_spec_tokens);
     beta_is_logit: bool = false => beta_is_logit = beta_is_logit as i32;
     scale: f32 = SCALE => scale = scale;
     lower_bound: f32 = 0.0 => lower_bound = lower_bound]
);
operation!(
    /// Decode of one token per row in the Kimi K3 layout.
    Packed, kda_packed_args,
    [mixed_qkv, raw_gate, raw_beta, a_log, dt_bias, state, state_indices, out],
    []
);
operation!(
    /// Convolution, recurrent update and gated RMS norm of one token per row.
    Fused, kda_fused_args,
    [x, weight, conv_state, raw_gate, raw_beta, a_log, dt_bias, state_indices, state, output_gate, norm_weight, out],
    [gate: Gate = Gate::LowerBound => gate = gate as c_int;
     /// Mandatory.
     mode: Option<Mode> = None => mode = mode.map_or(0, |mode| mode as c_int);
     lower_bound: f32 = -5.0 => lower_bound = lower_bound;
     norm_eps: f32 = 1e-5 => norm_eps = norm_eps]
);
operation!(
    /// Outputs of a window of up to 16 tokens per row; the pool is only read.
    Verify, kda_verify_args,
    [q, k, v, g, beta, a_log, dt_bias, state, out, ssm_state_indices, cu_seqlens, correction_cache, kg_cache,
     num_accepted_tokens],
    [gate: Gate = Gate::Precomputed => gate = gate as c_int;
     /// T - 1.
     num_spec_tokens: Option<i32> = None => num_spec_tokens = num_spec_tokens.unwrap_or(0),
                                            flags = speculative(num_spec_tokens);
     /// The first live slot.
     null_min: i32 = 0 => null_min = null_min;
     beta_is_logit: bool = false => beta_is_logit = beta_is_logit as i32;
     scale: f32 = SCALE => scale = scale;
     lower_bound: f32 = 0.0 => lower_bound = lower_bound]
);
operation!(
    /// Folds the first accepted tokens of a verified window into the pool.
    Commit, kda_commit_args,
    [state, correction_cache, kg_cache, ssm_state_indices, num_accepted_tokens, a_log, dt_bias],
    [gate: Gate = Gate::Precomputed => gate = gate as c_int;
     /// Query/key heads.
     heads: i32 = 0 => heads = heads;
     /// The first live slot.
     null_min: i32 = 0 => null_min = null_min;
     lower_bound: f32 = 0.0 => lower_bound = lower_bound]
);

// ----------------------------------------------------------------------------------------- bundles

/// Bytes at an address that a bundle may have; what [`include_bundle!`] makes.
#[repr(C, align(64))]
pub struct Aligned<T: ?Sized>(
    /// The bytes.
    pub T,
);

/// A bundle file as bytes of the program, `&'static [u8]`. `include_bytes!` alone promises no alignment.
#[macro_export]
macro_rules! include_bundle {
    ($path:expr) => {{
        static BUNDLE: &$crate::Aligned<[u8]> = &$crate::Aligned(*include_bytes!($path));
        &BUNDLE.0
    }};
}

/// An opened bundle, immutable; any number of threads may use it.
pub struct Bundle<'a> {
    handle: *mut ffi::kda_bundle,
    data: PhantomData<&'a [u8]>,
}

unsafe impl Send for Bundle<'_> {}
unsafe impl Sync for Bundle<'_> {}

impl<'a> Bundle<'a> {
    /// The bundle that is linked into the library.
    pub fn builtin() -> Result<Bundle<'static>> {
        Bundle::by(|out, err| unsafe { ffi::kda_bundle_open_builtin(out, err) })
    }

    /// Bytes that the program holds, at a multiple of 8: by [`include_bundle!`] for example.
    pub fn bytes(data: &'a [u8]) -> Result<Bundle<'a>> {
        Bundle::by(|out, err| unsafe { ffi::kda_bundle_open(data.as_ptr().cast(), data.len(), out, err) })
    }

    /// A file, read whole.
    pub fn file(path: &Path) -> Result<Bundle<'static>> {
        use std::os::unix::ffi::OsStrExt;
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Error {
            status: ffi::KDA_E_IO,
            cuda: 0,
            text: "bundle open: the path holds a NUL, must be the path of a file".to_owned(),
        })?;
        Bundle::by(|out, err| unsafe { ffi::kda_bundle_open_file(path.as_ptr(), out, err) })
    }

    fn by(open: impl FnOnce(*mut *mut ffi::kda_bundle, *mut ffi::kda_error) -> c_int) -> Result<Bundle<'a>> {
        let mut handle = ptr::null_mut();
        check(|err| open(&mut handle, err))?;
        Ok(Bundle { handle, data: PhantomData })
    }

    /// The digest of what the bundle means.
    pub fn id(&self) -> [u8; 32] {
        let mut out = [0; 32];
        unsafe { ffi::kda_bundle_id(self.handle, out.as_mut_ptr()) };
        out
    }

    /// Proves every byte.
    pub fn verify(&self) -> Result<()> {
        check(|err| unsafe { ffi::kda_bundle_verify(self.handle, err) })
    }
}

impl Drop for Bundle<'_> {
    fn drop(&mut self) {
        unsafe { ffi::kda_bundle_close(&mut self.handle) }
    }
}

// ---------------------------------------------------------------------------------------- contexts

/// A bundle bound to one CUDA context. Any number of threads may launch with it.
///
/// Dropping it unloads its images: no launch may be queued and no graph that holds one of its kernels
/// may live, as `kda_context_close` says.
pub struct Context<'b> {
    handle: *mut ffi::kda_context,
    bundle: PhantomData<&'b Bundle<'b>>,
}

unsafe impl Send for Context<'_> {}
unsafe impl Sync for Context<'_> {}

impl<'b> Context<'b> {
    /// Binds the bundle to the calling thread's current CUDA context.
    pub fn new(bundle: &'b Bundle<'_>) -> Result<Context<'b>> {
        // A null handle stands for the current context.
        unsafe { Context::on(bundle, ptr::null_mut()) }
    }

    /// Binds the bundle to a CUDA context.
    ///
    /// # Safety
    /// `cuda` must be null or a handle that the driver gave.
    pub unsafe fn on(bundle: &'b Bundle<'_>, cuda: CUcontext) -> Result<Context<'b>> {
        let mut handle = ptr::null_mut();
        check(|err| unsafe { ffi::kda_context_create(bundle.handle, cuda, ptr::null(), &mut handle, err) })?;
        Ok(Context { handle, bundle: PhantomData })
    }

    /// Loads every image that the device could be routed to, so that launches can be captured.
    pub fn prepare(&self) -> Result<()> {
        check(|err| unsafe { ffi::kda_context_prepare(self.handle, ptr::null(), err) })
    }

    /// One kernel on the stream.
    pub fn recurrent(&self, args: &Recurrent, stream: Stream) -> Result<()> {
        check(|err| unsafe { ffi::kda_recurrent(self.handle, &args.plain(), stream.0, err) })
    }

    /// As [`Context::recurrent`].
    pub fn packed(&self, args: &Packed, stream: Stream) -> Result<()> {
        check(|err| unsafe { ffi::kda_packed(self.handle, &args.plain(), stream.0, err) })
    }

    /// As [`Context::recurrent`].
    pub fn fused(&self, args: &Fused, stream: Stream) -> Result<()> {
        check(|err| unsafe { ffi::kda_fused(self.handle, &args.plain(), stream.0, err) })
    }

    /// As [`Context::recurrent`].
    pub fn verify(&self, args: &Verify, stream: Stream) -> Result<()> {
        check(|err| unsafe { ffi::kda_verify(self.handle, &args.plain(), stream.0, err) })
    }

    /// As [`Context::recurrent`].
    pub fn commit(&self, args: &Commit, stream: Stream) -> Result<()> {
        check(|err| unsafe { ffi::kda_commit(self.handle, &args.plain(), stream.0, err) })
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        unsafe { ffi::kda_context_close(&mut self.handle) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pdl_is_a_flag_beside_the_others() {
        assert_eq!(Recurrent::default().plain().flags, 0);
        assert_eq!(Recurrent { pdl: true, ..Default::default() }.plain().flags, ffi::KDA_FLAG_PDL);
        let both = ffi::KDA_FLAG_PDL | ffi::KDA_FLAG_SPECULATIVE;
        assert_eq!(Recurrent { pdl: true, num_spec_tokens: Some(1), ..Default::default() }.plain().flags, both);
        assert_eq!(Verify { pdl: true, num_spec_tokens: Some(1), ..Default::default() }.plain().flags, both);
        assert_eq!(Packed { pdl: true, ..Default::default() }.plain().flags, ffi::KDA_FLAG_PDL);
        assert_eq!(Fused { pdl: true, ..Default::default() }.plain().flags, ffi::KDA_FLAG_PDL);
        assert_eq!(Commit { pdl: true, ..Default::default() }.plain().flags, ffi::KDA_FLAG_PDL);
    }
}
