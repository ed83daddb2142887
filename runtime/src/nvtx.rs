//! Named ranges for NVIDIA's profilers, where their library is installed; nothing elsewhere.

use std::ffi::{CString, c_char, c_int};
use std::marker::PhantomData;
use std::sync::LazyLock;

use libloading::Library;

/// Libraries that export the calls, the first that is there taken.
const LIBRARIES: [&str; 3] = ["libnvToolsExt.so.1", "libnvtx3interop.so.1", "libnvtx3interop.so"];

/// The library's calls.
struct Calls {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    _library: Library,
}

static CALLS: LazyLock<Option<Calls>> = LazyLock::new(|| LIBRARIES.iter().find_map(|name| Calls::load(name)));

impl Calls {
    fn load(name: &str) -> Option<Calls> {
        // SAFETY: loading the library attaches a profiler if one is running, and does nothing else. The calls
        // have these types in every version, and are kept together with their library.
        unsafe {
            let library = Library::new(name).ok()?;
            let push = *library.get(c"nvtxRangePushA").ok()?;
            let pop = *library.get(c"nvtxRangePop").ok()?;
            Some(Calls { push, pop, _library: library })
        }
    }
}

/// A range on this thread, which ends when it is dropped. Ranges nest.
pub(crate) struct Range {
    calls: &'static Calls,
    /// The thread that begins a range must end it.
    _thread: PhantomData<*const ()>,
}

/// Begins a range called "`kind` `name`", if a profiler could see it.
pub(crate) fn range(kind: &str, name: &str) -> Option<Range> {
    let calls = CALLS.as_ref()?;
    let text = CString::new(format!("{kind} {name}")).ok()?;
    // SAFETY: the text is alive during the call, which copies it.
    unsafe { (calls.push)(text.as_ptr()) };
    Some(Range { calls, _thread: PhantomData })
}

impl Drop for Range {
    fn drop(&mut self) {
        // SAFETY: ends the range that this value began on this thread.
        unsafe { (self.calls.pop)() };
    }
}
