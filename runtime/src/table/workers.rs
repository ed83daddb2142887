//! A work list spread over the machine's cores, on threads that stay.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;

/// Threads used for reading and writing files.
pub(crate) fn cores() -> usize {
    // Asked once: on Linux the answer is read from files of the control group.
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| thread::available_parallelism().map_or(1, |n| n.get()))
}

/// Runs `work` on every item and returns the error of the first item, in their order, that has one. Items are
/// started in order, so that one may wait for those before it, and none after an error, so that which error that is
/// does not depend on timing. A thread that waits here takes other work up: callers hold no lock that `work` takes.
pub(crate) fn for_each<T, E>(items: Vec<T>, work: impl Fn(T) -> Result<(), E> + Sync) -> Result<(), E>
where
    T: Send,
    E: Send,
{
    let threads = cores().min(items.len());
    if threads <= 1 {
        return items.into_iter().try_for_each(work);
    }
    let queue = Mutex::new(items.into_iter().enumerate());
    let failed = AtomicBool::new(false);
    let first_error: Mutex<Option<(usize, E)>> = Mutex::new(None);
    let next = || if failed.load(Ordering::Relaxed) { None } else { lock(&queue).next() };
    rayon::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|_| {
                while let Some((at, item)) = next() {
                    if let Err(error) = work(item) {
                        failed.store(true, Ordering::Relaxed);
                        let mut first = lock(&first_error);
                        if first.as_ref().is_none_or(|(before, _)| at < *before) {
                            *first = Some((at, error));
                        }
                    }
                }
            });
        }
    });
    let first_error = lock(&first_error).take();
    first_error.map_or(Ok(()), |(_, error)| Err(error))
}

/// Like [`for_each`], and returns the results in the order of the items.
pub(crate) fn map<T, R, E>(items: Vec<T>, work: impl Fn(T) -> Result<R, E> + Sync) -> Result<Vec<R>, E>
where
    T: Send,
    R: Send,
    E: Send,
{
    let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
    for_each(items.into_iter().zip(results.iter_mut()).collect(), |(item, slot)| {
        *slot = Some(work(item)?);
        Ok(())
    })?;
    Ok(results.into_iter().flatten().collect())
}

/// Locks a mutex; a panic elsewhere does not make its content unusable here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;

    use super::*;

    #[test]
    fn results_keep_the_order_of_items() {
        let doubled = map((0..1000).collect(), |i: u32| Ok::<_, ()>(i * 2)).unwrap();
        assert_eq!(doubled, (0..1000).map(|i| i * 2).collect::<Vec<_>>());
        assert_eq!(map(Vec::<u32>::new(), Ok::<_, ()>).unwrap(), Vec::<u32>::new());
    }

    #[test]
    fn an_error_is_returned() {
        let result = for_each((0..100).collect(), |i: u32| if i == 40 { Err(i) } else { Ok(()) });
        assert_eq!(result, Err(40));
    }

    #[test]
    fn an_item_may_wait_for_those_before_it() {
        let (done, moved_on) = (Mutex::new(0), Condvar::new());
        let in_turn = |i: usize| {
            let mut done = moved_on.wait_while(lock(&done), |done| *done < i).unwrap();
            *done += 1;
            moved_on.notify_all();
            Ok::<_, ()>(())
        };
        for_each((0..10 * cores()).collect(), in_turn).unwrap();
        assert_eq!(*lock(&done), 10 * cores());
    }

    #[test]
    fn which_error_does_not_depend_on_timing() {
        for _ in 0..50 {
            let slow_first = |i: u32| {
                thread::sleep(std::time::Duration::from_micros(if i == 0 { 500 } else { 0 }));
                Err::<(), _>(i)
            };
            assert_eq!(for_each((0..8).collect(), slow_first), Err(0));
        }
    }
}
