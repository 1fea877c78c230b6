// SPDX-License-Identifier: Apache-2.0
//! One decode step from Rust: the bundle included as bytes, a row of ones through the recurrence, and
//! what a refusal looks like.
//!
//!     KDA_LIB=BUILD KDA_BUNDLE=BUILD/kda.bundle cargo run --example hello
use std::mem::size_of_val;
use std::os::raw::{c_int, c_uint, c_void};
use std::ptr;

// What this example needs of the CUDA driver; a program has its own way to device memory.
#[link(name = "cuda")]
extern "C" {
    fn cuInit(flags: c_uint) -> c_int;
    fn cuDevicePrimaryCtxRetain(out: *mut *mut c_void, device: c_int) -> c_int;
    fn cuCtxSetCurrent(context: *mut c_void) -> c_int;
    fn cuMemAlloc_v2(out: *mut u64, size: usize) -> c_int;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, size: usize) -> c_int;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, size: usize) -> c_int;
}

fn open_device() {
    let mut context = ptr::null_mut();
    unsafe {
        assert_eq!(cuInit(0), 0);
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), 0);
        assert_eq!(cuCtxSetCurrent(context), 0);
    }
}

fn upload(values: &[u16]) -> u64 {
    let mut address = 0;
    unsafe {
        assert_eq!(cuMemAlloc_v2(&mut address, size_of_val(values)), 0);
        assert_eq!(cuMemcpyHtoD_v2(address, values.as_ptr().cast(), size_of_val(values)), 0);
    }
    address
}

fn bf16(x: f32) -> u16 {
    (x.to_bits() >> 16) as u16
}

fn main() -> Result<(), kda::Error> {
    open_device();
    let bundle = kda::Bundle::bytes(kda::include_bundle!(env!("KDA_BUNDLE")))?;
    let context = kda::Context::new(&bundle)?;
    context.prepare()?;

    let (rows, heads, value_heads) = (2i64, 1i64, 2i64);
    let fill = |count: i64, x: f32| upload(&vec![bf16(x); count as usize]);
    let out = fill(rows * value_heads * 128, 9.0);
    let view = |address, extents: &[i64]| unsafe { kda::Tensor::new(address, kda::Dtype::Bf16, extents) };
    let mut args = kda::Recurrent {
        q: view(fill(rows * heads * 128, 1.0), &[rows, 1, heads, 128]),
        k: view(fill(rows * heads * 128, 1.0), &[rows, 1, heads, 128]),
        v: view(fill(rows * value_heads * 128, 1.0), &[rows, 1, value_heads, 128]),
        g: view(fill((rows * value_heads + 1) * 128, 0.0), &[rows, 1, value_heads, 128]),
        beta: view(fill(rows * value_heads, 0.5), &[rows, 1, value_heads]),
        state: view(fill(rows * value_heads * 128 * 128, 0.0), &[rows, value_heads, 128, 128]),
        out: view(out, &[rows, 1, value_heads, 128]),
        ..Default::default()
    };
    context.recurrent(&args, kda::Stream::default())?;

    // From a zero state a token of ones gives scale*beta*v.
    let mut got = vec![0u16; (rows * value_heads * 128) as usize];
    unsafe { assert_eq!(cuMemcpyDtoH_v2(got.as_mut_ptr().cast(), out, size_of_val(&got[..])), 0) };
    let wanted = kda::SCALE * 0.5;
    for bits in got {
        assert!((f32::from_bits(u32::from(bits) << 16) - wanted).abs() < 5e-3 * wanted);
    }
    println!("hello: {wanted:.4}");

    args.g = unsafe { args.g.with_strides(&[258, 258, 128, 1]) };
    match context.recurrent(&args, kda::Stream::default()) {
        Err(error) => println!("refused: {error}"),
        Ok(()) => panic!("a gate stride of 258 was accepted"),
    }
    Ok(())
}
