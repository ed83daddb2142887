//! Linker settings that keep the binary small: identical functions are merged, relocations packed, symbols dropped.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all,-z,pack-relative-relocs,--strip-all");
    }
}
