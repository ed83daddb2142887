//! NVRTC: CUDA C++ to machine code of one architecture. Needs the library, and no GPU.
//!
//! The library is loaded by path, from the folders that a person names before those of the system, so that
//! the version in use is the one that was asked for.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::Library;

use super::cache::{self, DiskCache, SharedMap};
use super::elf::keeps_nothing;
use super::{DeviceError, shorten};

/// All cores optimise the kernels of a plan (`--split-compile`).
const OPTIONS: [&str; 7] = [
    "--std=c++17",
    "--device-int128",
    "-default-device",
    "-lineinfo",
    "--fmad=false",
    "--split-compile=0",
    "-w",
];

/// Folders in which the libraries of a CUDA installation are looked for before the system's own: those of
/// `$DKB_CUDA_LIB_DIR` (separated by `:`), then `/usr/local/cuda*/lib64`, newest first.
pub fn library_dirs() -> Vec<PathBuf> {
    let named = std::env::var_os("DKB_CUDA_LIB_DIR").unwrap_or_default();
    let mut dirs: Vec<PathBuf> =
        std::env::split_paths(&named).filter(|p| !p.as_os_str().is_empty()).collect();
    dirs.push("/usr/local/cuda/lib64".into());
    let local = std::fs::read_dir("/usr/local").into_iter().flatten().flatten();
    let mut versioned: Vec<PathBuf> = local
        .filter(|e| e.file_name().to_string_lossy().starts_with("cuda-"))
        .map(|e| e.path().join("lib64"))
        .collect();
    versioned.sort_by_key(|path| std::cmp::Reverse(numbers(path)));
    dirs.extend(versioned);
    dirs
}

/// Compiles CUDA C++ for `arch`, such as `sm_90`, to a cubin, without any cache.
///
/// # Errors
/// [`DeviceError::Unavailable`] without NVRTC; [`DeviceError::Compile`] with its log, or with what the code must not
/// hold.
pub fn compile_cubin(source: &str, arch: &str) -> Result<Vec<u8>, DeviceError> {
    let image = compile(source, arch)?;
    keeps_nothing(&image, &Nvrtc::get()?.version)?;
    Ok(image)
}

/// Compiles without looking at what comes out.
pub(super) fn compile(source: &str, arch: &str) -> Result<Vec<u8>, DeviceError> {
    Nvrtc::get()?.compile(source, arch)
}

/// Whether NVRTC can be loaded, and its version, such as `NVRTC 13.0`.
///
/// # Errors
/// [`DeviceError::Unavailable`] says what is missing.
pub fn version() -> Result<String, DeviceError> {
    Ok(Nvrtc::get()?.version.clone())
}

/// [`compile_cubin`] through the disk cache; concurrent calls for one source compile once.
///
/// # Errors
/// As [`compile_cubin`].
pub(super) fn cached_cubin(source: &str, arch: &str) -> Result<Cubin, DeviceError> {
    static CUBINS: SharedMap<Vec<u8>> = SharedMap::new();
    let nvrtc = Nvrtc::get()?;
    let key = cache::key(&[source, arch, &nvrtc.version, &OPTIONS.join(" ")]);
    let image = CUBINS.get_or_make(&key, || {
        let disk = DiskCache::from_env();
        let name = format!("{key}.cubin");
        if let Some(image) = disk.get(&name) {
            return Ok(image);
        }
        let image = compile_cubin(source, arch)?;
        if let Err(e) = disk.put(&name, &image) {
            tracing::warn!("cannot store compiled code in {}: {e}; set DKB_CACHE_DIR", disk.dir().display());
        }
        Ok(image)
    })?;
    Ok(Cubin { key, image })
}

/// Machine code and the key of what it was made from.
pub(super) struct Cubin {
    pub(super) key: String,
    pub(super) image: std::sync::Arc<Vec<u8>>,
}

type Program = *mut c_void;
type Status = c_int;

/// The functions of NVRTC's C interface that we use.
struct Nvrtc {
    version: String,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Status,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    log: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> Status,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    error: unsafe extern "C" fn(Status) -> *const c_char,
    _library: Library,
}

impl Nvrtc {
    fn get() -> Result<&'static Nvrtc, DeviceError> {
        static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        let loaded = NVRTC.get_or_init(Nvrtc::load);
        loaded.as_ref().map_err(|message| DeviceError::Unavailable(message.clone()))
    }

    fn load() -> Result<Nvrtc, String> {
        let mut found = Vec::new();
        for dir in library_dirs() {
            found.extend(libraries_in(&dir, "libnvrtc.so."));
        }
        let by_name = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"].map(PathBuf::from);
        let mut reason = None;
        for path in found.into_iter().chain(by_name) {
            match Nvrtc::open(&path) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(e) if path.is_absolute() => reason = Some(format!("{}: {e}", path.display())),
                Err(_) => {}
            }
        }
        let reason = reason.map(|r| format!(" ({r})")).unwrap_or_default();
        Err(format!(
            "no usable NVRTC library (libnvrtc.so){reason}: install the CUDA toolkit, or set DKB_CUDA_LIB_DIR \
             to the folder that holds it"
        ))
    }

    fn open(path: &Path) -> Result<Nvrtc, libloading::Error> {
        // NVRTC opens its builtins by name when it compiles; a copy that is loaded already is found.
        for builtins in
            path.parent().map(|dir| libraries_in(dir, "libnvrtc-builtins.so.")).unwrap_or_default()
        {
            // SAFETY: a library of the CUDA toolkit; loading it has no side effects.
            if let Ok(library) = unsafe { Library::new(builtins) } {
                std::mem::forget(library);
            }
        }
        // SAFETY: as above; the symbols have these types in every NVRTC since 11.1, and the library stays
        // loaded as long as the pointers.
        unsafe {
            let library = Library::new(path)?;
            let version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status =
                *library.get("nvrtcVersion")?;
            let (mut major, mut minor) = (0, 0);
            version(&mut major, &mut minor);
            Ok(Nvrtc {
                version: format!("NVRTC {major}.{minor}"),
                create: *library.get("nvrtcCreateProgram")?,
                destroy: *library.get("nvrtcDestroyProgram")?,
                compile: *library.get("nvrtcCompileProgram")?,
                log_size: *library.get("nvrtcGetProgramLogSize")?,
                log: *library.get("nvrtcGetProgramLog")?,
                cubin_size: *library.get("nvrtcGetCUBINSize")?,
                cubin: *library.get("nvrtcGetCUBIN")?,
                error: *library.get("nvrtcGetErrorString")?,
                _library: library,
            })
        }
    }

    fn compile(&self, source: &str, arch: &str) -> Result<Vec<u8>, DeviceError> {
        let failed = |log: &str| DeviceError::Compile { compiler: self.version.clone(), log: shorten(log) };
        let source = CString::new(source).map_err(|_| failed("the source holds a NUL byte"))?;
        let arch = format!("--gpu-architecture={arch}");
        let options: Result<Vec<CString>, _> =
            OPTIONS.into_iter().chain([arch.as_str()]).map(CString::new).collect();
        let options = options.map_err(|_| failed("the architecture's name holds a NUL byte"))?;
        let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

        let mut program: Program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: the strings outlive the program; no headers are given.
        let status = unsafe {
            (self.create)(&mut program, source.as_ptr(), c"unit.cu".as_ptr(), 0, none, none.cast())
        };
        self.check(status).map_err(|e| failed(&e))?;
        // SAFETY: `program` was just created and is destroyed once, below; the options outlive the call.
        let status = unsafe { (self.compile)(program, options.len() as c_int, options.as_ptr()) };
        let result = match self.check(status) {
            // SAFETY: `program` is compiled.
            Ok(()) => unsafe { self.text(program, self.cubin_size, self.cubin) }.map_err(|e| failed(&e)),
            Err(e) => {
                // SAFETY: `program` is alive.
                let log = unsafe { self.text(program, self.log_size, self.log) }.unwrap_or_default();
                let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
                Err(failed(if log.is_empty() { &e } else { &log }))
            }
        };
        // SAFETY: see above.
        unsafe { (self.destroy)(&mut program) };
        result.and_then(|image| if image.is_empty() { Err(failed("the cubin is empty")) } else { Ok(image) })
    }

    /// # Safety
    /// `program` is alive, and `size` and `fill` are a pair of functions for the same text of it.
    unsafe fn text(
        &self,
        program: Program,
        size: unsafe extern "C" fn(Program, *mut usize) -> Status,
        fill: unsafe extern "C" fn(Program, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, String> {
        let mut len = 0usize;
        // SAFETY: by the caller's promise.
        self.check(unsafe { size(program, &mut len) })?;
        let mut text = vec![0u8; len];
        // SAFETY: `text` has the bytes that `size` asked for.
        self.check(unsafe { fill(program, text.as_mut_ptr().cast()) })?;
        Ok(text)
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function gives a static string for every status.
        let words = unsafe { CStr::from_ptr((self.error)(status)) };
        Err(words.to_string_lossy().into_owned())
    }
}

/// Files of `dir` whose names begin with `prefix`, highest version first.
fn libraries_in(dir: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix)).map(|e| e.path()).collect();
    paths.sort_by_key(|path| std::cmp::Reverse(numbers(path)));
    paths
}

fn numbers(path: &Path) -> Vec<u64> {
    let text = path.to_string_lossy();
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primitives_compile_without_a_gpu() {
        if let Err(e) = version() {
            eprintln!("skipped: {e}");
            return;
        }
        let kernel =
            "extern \"C\" __global__ void count(u64 rows, u64* n) {\n  DKB_ROWS(i, rows) append(n);\n}\n";
        let source = format!("{}\n{kernel}", dkb_kernels::DKB_CUH);
        let image = compile_cubin(&source, "sm_90").unwrap();
        assert!(image.starts_with(b"\x7fELF"), "a cubin is an ELF file");
        let error = compile_cubin("#line 1 \"plan.cu\"\nint x = ;\n", "sm_90").unwrap_err();
        assert!(error.to_string().contains("plan.cu(1)"), "{error}");
    }
}
