//! Buffers between devices: copies folded into one, and pieces given to the others.
//!
//! Each device folds one slice of a buffer out of all copies, and then all devices take each other's slices: both
//! steps keep every device and every link busy. Where devices read each other's memory, each step is one launch a
//! device, whatever the number of buffers; elsewhere it is copies, and folds of what was copied. A library such
//! as NCCL takes over what it can do and is large enough.
//!
//! Of large buffers whose devices read each other's memory, blocks in which a device has nothing to add do not cross
//! the link: where a table is clustered by the key of an array, each device fills parts of the array that no other does.

use std::sync::Arc;

use dkb_kernels::{EXCHANGE, EXCHANGE_BLOCK, Elem, ExchangeTask, MarkTask, Reduce};

use super::Error;
use crate::device::links::{Collectives, Fold, Links, Piece, Shared, Spot, link};
use crate::device::{Device, DeviceError, Memory, Module};

/// Bytes that a thread of the kernel handles at once. Slices begin at multiples of it, which every element
/// divides.
const WORD_BYTES: u64 = 16;
/// Tasks begin at multiples of so many threads, which are a block.
const TASK_THREADS: u64 = 256;
/// The most that a device copies from others before it folds that.
const SCRATCH_BYTES: usize = 64 << 20;
/// Alignment of copies in scratch memory.
const SCRATCH_ALIGN: usize = 256;
/// From here on a library's collectives repay their start, where devices can read each other's memory.
const COLLECTIVE_BYTES: usize = 1 << 20;
/// From here on looking for blocks that need not cross the link repays a pass over the buffer.
const MARK_BYTES: usize = 32 << 20;

/// What devices of a session exchange buffers with.
pub(crate) struct Exchange {
    devices: Vec<Arc<dyn Device>>,
    /// By device: the folding kernel.
    modules: Vec<Arc<dyn Module>>,
    links: Box<dyn Links>,
    scratch_bytes: usize,
    mark_bytes: usize,
}

/// Which blocks of the copies of a buffer hold what is to be folded.
struct FilledBlocks {
    /// By device: those of its copy.
    own: Vec<Box<dyn Memory>>,
    /// By device: those of any other copy. Empty if there is but one, whose own marks serve.
    others: Vec<Box<dyn Memory>>,
}

impl FilledBlocks {
    fn of_others(&self, device: usize) -> u64 {
        self.others.get(device).unwrap_or_else(|| &self.own[1 - device]).address()
    }
}

/// Memory that holds copies of a peer's buffers.
pub(super) type Copies = Vec<Box<dyn Memory>>;

/// Something for one device to copy or fold.
#[derive(Clone, Copy)]
struct Task<'a> {
    into: Spot<'a>,
    from: Spot<'a>,
    bytes: usize,
    /// None for a copy.
    fold: Option<(Elem, Reduce)>,
    /// Address of the marks of the blocks that matter, 0 for all; and where in the buffer `into` is, in bytes.
    marks: (u64, usize),
}

/// What one launch of the kernel works on.
#[derive(Default)]
struct List {
    tasks: Vec<ExchangeTask>,
    threads: u64,
}

impl List {
    /// Adds a task that reads at `from`. Tasks that write the same bytes follow each other.
    fn push(&mut self, task: &Task, from: u64) {
        let (into, bytes) = (task.into.address(), task.bytes as u64);
        let fold = task.fold.and_then(|(elem, reduce)| ExchangeTask::fold(into, from, bytes, elem, reduce));
        let mut added = fold.unwrap_or_else(|| ExchangeTask::copy(into, from, bytes));
        (added.marks, added.at) = (task.marks.0, task.marks.1 as u64);
        match self.tasks.last().filter(|last| last.into == into) {
            Some(last) => added.first = last.first,
            None => {
                added.first = self.threads as u32;
                self.threads += bytes.div_ceil(WORD_BYTES).next_multiple_of(TASK_THREADS);
            }
        }
        self.tasks.push(added);
    }
}

impl Exchange {
    /// Links devices and compiles the folding kernel; None for a single device, which has nobody to talk to.
    ///
    /// # Errors
    /// The way that `DKB_EXCHANGE` asks for is not there; no compiler; a failed device call.
    pub(crate) fn new(devices: &[Arc<dyn Device>]) -> Result<Option<Exchange>, DeviceError> {
        if devices.len() < 2 {
            return Ok(None);
        }
        Exchange::over(devices, link(devices)?).map(Some)
    }

    fn over(devices: &[Arc<dyn Device>], links: Box<dyn Links>) -> Result<Exchange, DeviceError> {
        let modules = devices.iter().map(|d| d.compile_builtin(&EXCHANGE)).collect::<Result<_, _>>()?;
        let (devices, scratch_bytes, mark_bytes) = (devices.to_vec(), SCRATCH_BYTES, MARK_BYTES);
        Ok(Exchange { devices, modules, links, scratch_bytes, mark_bytes })
    }

    /// How devices reach each other, in words.
    pub(crate) fn name(&self) -> String {
        self.links.name()
    }

    /// Later work of every device waits for all earlier work of all.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn barrier(&self) -> Result<(), Error> {
        Ok(self.links.barrier()?)
    }

    /// A peer's copies of buffers, as a device can read them between two barriers: their addresses, and the
    /// memory to keep until the device's work that reads them is issued.
    ///
    /// # Errors
    /// Out of memory, or a failed device call.
    pub(crate) fn peer_copies(
        &self,
        device: usize,
        peer: usize,
        buffers: &[&Shared],
    ) -> Result<(Vec<u64>, Copies), Error> {
        let mut kept = Vec::new();
        let mut address = |shared: &&Shared| {
            if self.links.reads_peers() {
                return Ok(shared.on(peer).address());
            }
            let memory = self.devices[device].alloc(shared.bytes)?;
            let to = Spot { device, memory: memory.as_ref(), offset: 0 };
            self.links.copy(to, shared.on(peer), shared.bytes)?;
            let address = memory.address();
            kept.push(memory);
            Ok(address)
        };
        let addresses: Result<_, DeviceError> = buffers.iter().map(&mut address).collect();
        let addresses = addresses.map_err(|e| self.naming(e, buffers.iter().copied()))?;
        Ok((addresses, kept))
    }

    /// Moves bytes within one device's copy of a buffer; the two ranges do not overlap.
    ///
    /// # Errors
    /// A failed device call.
    pub(crate) fn move_within(
        &self,
        of: &Shared,
        device: usize,
        to: usize,
        from: usize,
        bytes: usize,
    ) -> Result<(), Error> {
        let on = of.on(device);
        Ok(self.links.copy(on.plus(to), on.plus(from), bytes).map_err(|e| self.naming(e, [of]))?)
    }

    /// Folds copies into one, and gives pieces to the devices that want them. Afterwards the devices may use and
    /// change all of it.
    ///
    /// # Errors
    /// Out of memory, or a failed device call, naming the buffers.
    pub(crate) fn combine(&self, folds: &[Fold], pieces: &[Piece]) -> Result<(), Error> {
        let all = || folds.iter().map(|f| f.of).chain(pieces.iter().map(|p| p.of));
        Ok(self.combine_all(folds, pieces).map_err(|e| self.naming(e, all()))?)
    }

    fn combine_all(&self, folds: &[Fold], pieces: &[Piece]) -> Result<(), DeviceError> {
        let theirs = |f: &Fold| self.collectives(f.of.bytes).is_some_and(|c| c.reduces(f.elem, f.reduce));
        let (theirs, ours): (Vec<Fold>, Vec<Fold>) = folds.iter().partition(|f| theirs(f));
        let mut pieces = pieces.to_vec();
        let count = self.devices.len();
        let marks = ours.iter().map(|fold| self.mark(fold)).collect::<Result<Vec<_>, _>>()?;
        let (mut fold_tasks, mut copy_tasks) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        for (fold, marks) in ours.iter().zip(&marks) {
            add_fold(fold, marks.as_ref(), &mut fold_tasks, &mut copy_tasks, &mut pieces);
        }
        let (broadcast, taken): (Vec<Piece>, Vec<Piece>) = pieces.iter().partition(|piece| {
            !self.links.reads_peers() && !piece.to_root && self.collectives(piece.bytes).is_some()
        });
        for (device, tasks) in copy_tasks.iter_mut().enumerate() {
            let wanted =
                taken.iter().filter(|p| p.owner != device && p.bytes > 0 && (device == 0 || !p.to_root));
            tasks.extend(wanted.map(|piece| {
                let place = |d: usize| piece.of.on(d).plus(piece.start);
                let (into, from, bytes) = (place(device), place(piece.owner), piece.bytes);
                Task { into, from, bytes, fold: None, marks: (0, 0) }
            }));
        }

        if let Some(collectives) = self.links.collectives()
            && !theirs.is_empty()
        {
            collectives.all_reduce(&theirs)?;
        }
        let folding = fold_tasks.iter().any(|t| !t.is_empty());
        let copying = copy_tasks.iter().any(|t| !t.is_empty());
        if folding || copying {
            self.links.barrier()?;
            self.issue(&[fold_tasks, copy_tasks])?;
        }
        match self.links.collectives() {
            Some(collectives) if !broadcast.is_empty() => collectives.broadcast(&broadcast),
            _ => Ok(()),
        }
    }

    /// Marks the blocks of a buffer that its devices have filled; None where that repays nothing.
    fn mark(&self, fold: &Fold) -> Result<Option<FilledBlocks>, DeviceError> {
        let (of, count) = (fold.of, self.devices.len());
        let is_aligned = |device: usize| of.on(device).address().is_multiple_of(WORD_BYTES);
        let Some(idle) = fold.idle.filter(|_| self.links.reads_peers() && of.bytes >= self.mark_bytes) else {
            return Ok(None);
        };
        if !(0..count).all(is_aligned) {
            return Ok(None);
        }
        let bytes = (of.bytes as u64).div_ceil(EXCHANGE_BLOCK).div_ceil(32) as usize * 4;
        let zeros = |device: &Arc<dyn Device>| {
            let memory = device.alloc(bytes)?;
            device.fill(memory.as_ref(), Elem::U8, 0, bytes)?;
            Ok(memory)
        };
        let each = || self.devices.iter().map(zeros).collect::<Result<Vec<_>, DeviceError>>();
        let marks = FilledBlocks { own: each()?, others: if count > 2 { each()? } else { Vec::new() } };
        for (at, device) in self.devices.iter().enumerate() {
            let (data, marks) = (of.on(at).address(), marks.own[at].address());
            let task = MarkTask { data, bytes: of.bytes as u64, idle, marks }.to_bytes();
            let memory = device.alloc(task.len())?;
            device.upload(memory.as_ref(), 0, &task)?;
            let (threads, args) = (of.bytes as u64 / WORD_BYTES, [1, memory.address()]);
            device.launch(self.modules[at].as_ref(), EXCHANGE.kernels[1], threads.max(1), &args)?;
        }
        Ok(Some(marks))
    }

    /// The library that deals with buffers of that size.
    fn collectives(&self, bytes: usize) -> Option<&dyn Collectives> {
        let least = if self.links.reads_peers() { COLLECTIVE_BYTES } else { 1 };
        self.links.collectives().filter(|_| bytes >= least)
    }

    /// Issues the stages' tasks, by device, and a barrier behind each stage.
    fn issue(&self, stages: &[Vec<Vec<Task>>; 2]) -> Result<(), DeviceError> {
        // Both stages' lists of a device go there in one upload.
        let mut uploaded = Vec::new();
        if self.links.reads_peers() {
            for device in 0..self.devices.len() {
                let lists = stages.each_ref().map(|devices| {
                    let mut list = List::default();
                    devices[device].iter().for_each(|task| list.push(task, task.from.address()));
                    list
                });
                let memory = self.upload(device, &[&lists[0].tasks[..], &lists[1].tasks].concat())?;
                uploaded.push((memory, lists));
            }
        }
        for (stage, devices) in stages.iter().enumerate() {
            if devices.iter().all(Vec::is_empty) {
                continue;
            }
            for (device, tasks) in devices.iter().enumerate() {
                let Some((memory, lists)) = uploaded.get(device) else {
                    self.issue_copies(device, tasks)?;
                    continue;
                };
                let before = if stage == 0 { 0 } else { lists[0].tasks.len() };
                let at = memory.address() + (before * ExchangeTask::BYTES) as u64;
                self.launch(device, at, &lists[stage])?;
            }
            self.links.barrier()?;
        }
        Ok(())
    }

    /// Issues one device's tasks where it cannot read the memory of others.
    fn issue_copies(&self, device: usize, tasks: &[Task]) -> Result<(), DeviceError> {
        let (folds, copies): (Vec<&Task>, Vec<&Task>) = tasks.iter().partition(|task| task.fold.is_some());
        for task in copies {
            self.links.copy(task.into, task.from, task.bytes)?;
        }
        let wanted: usize = folds.iter().map(|task| task.bytes.next_multiple_of(SCRATCH_ALIGN)).sum();
        if wanted == 0 {
            return Ok(());
        }
        let scratch = self.devices[device].alloc(wanted.min(self.scratch_bytes))?;
        let fold = |list: &mut List| {
            let memory = self.upload(device, &list.tasks)?;
            self.launch(device, memory.address(), &std::mem::take(list))
        };
        let (mut list, mut used) = (List::default(), 0);
        for task in folds {
            for start in (0..task.bytes).step_by(self.scratch_bytes) {
                let bytes = (task.bytes - start).min(self.scratch_bytes);
                if used + bytes > self.scratch_bytes {
                    fold(&mut list)?;
                    used = 0;
                }
                let copied = Spot { device, memory: scratch.as_ref(), offset: used };
                self.links.copy(copied, task.from.plus(start), bytes)?;
                list.push(&Task { into: task.into.plus(start), bytes, ..*task }, copied.address());
                used += bytes.next_multiple_of(SCRATCH_ALIGN);
            }
        }
        fold(&mut list)
    }

    fn upload(&self, device: usize, tasks: &[ExchangeTask]) -> Result<Box<dyn Memory>, DeviceError> {
        let bytes: Vec<u8> = tasks.iter().flat_map(|task| task.to_bytes()).collect();
        let memory = self.devices[device].alloc(bytes.len())?;
        self.devices[device].upload(memory.as_ref(), 0, &bytes)?;
        Ok(memory)
    }

    /// Launches the kernel on a list that lies at an address of the device.
    fn launch(&self, device: usize, at: u64, list: &List) -> Result<(), DeviceError> {
        let args = [list.tasks.len() as u64, at];
        self.devices[device].launch(self.modules[device].as_ref(), EXCHANGE.kernels[0], list.threads, &args)
    }

    /// Says which buffers, and between which devices.
    fn naming<'a>(
        &self,
        error: DeviceError,
        buffers: impl IntoIterator<Item = &'a Shared<'a>>,
    ) -> DeviceError {
        let DeviceError::Call { device, call, message } = error else { return error };
        let mut names: Vec<String> = buffers.into_iter().map(|shared| format!("`{}`", shared.name)).collect();
        names.dedup();
        let devices: Vec<String> = self.devices.iter().map(|d| d.name()).collect();
        let call = format!("exchange of {} between {}: {call}", names.join(", "), devices.join(", "));
        DeviceError::Call { device, call, message }
    }
}

/// Adds what folds a buffer: each device folds a slice of it, and the others copy that. Without marks, what is copied is
/// added to the pieces.
fn add_fold<'t>(
    fold: &Fold<'t>,
    marks: Option<&'t FilledBlocks>,
    fold_tasks: &mut [Vec<Task<'t>>],
    copy_tasks: &mut [Vec<Task<'t>>],
    pieces: &mut Vec<Piece<'t>>,
) {
    let (of, to_root, count) = (fold.of, fold.to_root, fold_tasks.len());
    for (device, tasks) in fold_tasks.iter_mut().enumerate() {
        // Each device begins with another peer, so that no link serves two at once.
        let peers = || (1..count).map(move |step| (device + step) % count);
        let (start, end) = (border(of.bytes, device, count), border(of.bytes, device + 1, count));
        if start < end {
            let (slice, bytes) = (|d: usize| of.on(d).plus(start), end - start);
            tasks.extend(peers().map(|peer| Task {
                into: slice(device),
                from: slice(peer),
                bytes,
                fold: Some((fold.elem, fold.reduce)),
                marks: (marks.map_or(0, |marks| marks.own[peer].address()), start),
            }));
            match marks {
                None => pieces.push(Piece { of, owner: device, start, bytes, to_root }),
                Some(marks) => {
                    for peer in peers().filter(|peer| *peer == 0 || !to_root) {
                        let (into, from) = (slice(peer), slice(device));
                        let marks = (marks.of_others(peer), start);
                        copy_tasks[peer].push(Task { into, from, bytes, fold: None, marks });
                    }
                }
            }
        }
        let Some(marks) = marks else { continue };
        if let Some(others) = marks.others.get(device) {
            let spot = |device, memory: &'t dyn Memory| Spot { device, memory, offset: 0 };
            tasks.extend(peers().map(|peer| Task {
                into: spot(device, others.as_ref()),
                from: spot(peer, marks.own[peer].as_ref()),
                bytes: others.bytes(),
                fold: Some((Elem::U8, Reduce::Or)),
                marks: (0, 0),
            }));
        }
    }
}

/// Where slice `slice` of `bytes` begins, divided among `count` devices.
fn border(bytes: usize, slice: usize, count: usize) -> usize {
    if slice == count {
        return bytes;
    }
    let exact = bytes as u128 * slice as u128 / count as u128;
    exact as usize / WORD_BYTES as usize * WORD_BYTES as usize
}

#[cfg(test)]
mod unit_tests {
    use std::sync::Mutex;
    use std::time::Instant;

    use super::*;
    use crate::device::cuda::{self, CudaLinks};
    use crate::device::host::HostDevice;
    use crate::device::links::{HostLinks, Way};
    use crate::device::nvrtc;

    const ELEMS: [Elem; 10] = [
        Elem::U8,
        Elem::U16,
        Elem::U32,
        Elem::U64,
        Elem::I8,
        Elem::I16,
        Elem::I32,
        Elem::I64,
        Elem::I128,
        Elem::F64,
    ];
    const REDUCES: [Reduce; 4] = [Reduce::Sum, Reduce::Min, Reduce::Max, Reduce::Or];
    /// Bytes around a buffer that nothing may touch.
    const GUARD: usize = 64;

    fn hosts(count: usize) -> Vec<Arc<dyn Device>> {
        let devices = HostDevice::open(count, None).into_iter();
        devices.map(|device| Arc::new(device) as Arc<dyn Device>).collect()
    }

    fn over_hosts(count: usize, reads_peers: bool) -> Exchange {
        let devices = hosts(count);
        let links = HostLinks::new(&devices, reads_peers);
        Exchange::over(&devices, Box::new(links)).unwrap()
    }

    /// Bytes that differ from device to device; as doubles, integers whose sums are exact.
    fn content(elem: Elem, count: usize, device: usize) -> Vec<u8> {
        let random = |i: usize| {
            let seed = (i * 64 + device) as u64 + 1;
            u128::from(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .wrapping_mul(0xd6e8_feb8_6659_fd93_u128 << 59)
        };
        let width = elem.bytes();
        let value = |i: usize| match elem {
            Elem::F64 => ((random(i) >> 100) as f64 - 1e8).to_le_bytes().to_vec(),
            _ => random(i).to_le_bytes()[16 - width..].to_vec(),
        };
        (0..count).flat_map(value).collect()
    }

    /// What folding gives, element by element.
    fn folded(elem: Elem, reduce: Reduce, copies: &[Vec<u8>]) -> Vec<u8> {
        let width = elem.bytes();
        let signed = matches!(elem, Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64 | Elem::I128);
        let integer = |bytes: &[u8]| {
            let mut wide = [if signed && bytes[width - 1] > 127 { 255 } else { 0 }; 16];
            wide[..width].copy_from_slice(bytes);
            i128::from_le_bytes(wide)
        };
        let double = |bytes: &[u8]| f64::from_le_bytes(bytes.try_into().unwrap());
        let fold = |a: &[u8], b: &[u8]| -> Vec<u8> {
            match (reduce, elem) {
                (Reduce::Or, _) => a.iter().zip(b).map(|(a, b)| a | b).collect(),
                (Reduce::Sum, Elem::F64) => (double(a) + double(b)).to_le_bytes().to_vec(),
                (Reduce::Min, Elem::F64) => if double(b) < double(a) { b } else { a }.to_vec(),
                (Reduce::Max, Elem::F64) => if double(b) > double(a) { b } else { a }.to_vec(),
                (Reduce::Sum, _) => integer(a).wrapping_add(integer(b)).to_le_bytes()[..width].to_vec(),
                (Reduce::Min, _) => if integer(b) < integer(a) { b } else { a }.to_vec(),
                _ => if integer(b) > integer(a) { b } else { a }.to_vec(),
            }
        };
        let mut into = copies[0].clone();
        for copy in &copies[1..] {
            let pairs = into.chunks(width).zip(copy.chunks(width));
            into = pairs.flat_map(|(a, b)| fold(a, b)).collect();
        }
        into
    }

    /// One buffer on every device, between guards.
    struct Buffers {
        memory: Vec<Box<dyn Memory>>,
        bytes: usize,
    }

    impl Buffers {
        fn new(exchange: &Exchange, contents: &[Vec<u8>]) -> Buffers {
            let bytes = contents[0].len();
            let memory = exchange.devices.iter().zip(contents).map(|(device, content)| {
                let memory = device.alloc(bytes + 2 * GUARD).unwrap();
                let guarded = [&[0xee; GUARD][..], content, &[0xee; GUARD][..]].concat();
                device.upload(memory.as_ref(), 0, &guarded).unwrap();
                memory
            });
            Buffers { memory: memory.collect(), bytes }
        }

        fn shared(&self) -> Shared<'_> {
            let memory = self.memory.iter().map(|m| m.as_ref()).collect();
            Shared { name: "buffer", memory, offset: GUARD, bytes: self.bytes }
        }

        fn read(&self, exchange: &Exchange) -> Vec<Vec<u8>> {
            let contents = exchange.devices.iter().zip(&self.memory).map(|(device, memory)| {
                let mut bytes = vec![0; self.bytes + 2 * GUARD];
                device.download(memory.as_ref(), 0, &mut bytes).unwrap();
                assert!(bytes[..GUARD].iter().chain(&bytes[GUARD + self.bytes..]).all(|b| *b == 0xee));
                bytes[GUARD..GUARD + self.bytes].to_vec()
            });
            contents.collect()
        }
    }

    /// Every fold at several sizes, all sizes of one kind as one group.
    fn fold_everything(exchange: &Exchange) {
        let devices = exchange.devices.len();
        for (elem, reduce) in ELEMS.iter().flat_map(|e| REDUCES.map(|r| (*e, r))) {
            let contents: Vec<Vec<Vec<u8>>> = [1, 2, 15, 16, 17, 1000, 30_011]
                .iter()
                .map(|count| (0..devices).map(|device| content(elem, *count, device)).collect())
                .collect();
            let buffers: Vec<Buffers> = contents.iter().map(|c| Buffers::new(exchange, c)).collect();
            let shared: Vec<Shared> = buffers.iter().map(Buffers::shared).collect();
            let folds: Vec<Fold> =
                shared.iter().map(|of| Fold { of, elem, reduce, to_root: false, idle: None }).collect();
            exchange.combine(&folds, &[]).unwrap();
            for (buffers, contents) in buffers.iter().zip(&contents) {
                let expected = folded(elem, reduce, contents);
                let all_right = buffers.read(exchange).iter().all(|copy| *copy == expected);
                assert!(all_right, "{reduce:?} of {} {elem} on {devices}", contents[0].len() / elem.bytes());
            }
        }
    }

    /// Folds of buffers in which each device has filled some blocks, and others none or all have.
    fn fold_what_was_filled(exchange: &Exchange) {
        let devices = exchange.devices.len();
        for (elem, reduce, idle) in [
            (Elem::I64, Reduce::Sum, 0u8),
            (Elem::U8, Reduce::Or, 0),
            (Elem::I128, Reduce::Sum, 0),
            (Elem::U32, Reduce::Min, 0xff),
        ] {
            let count = 50_003 / elem.bytes();
            let filled = |device: usize| {
                let mut bytes = content(elem, count, device);
                for (block, bytes) in bytes.chunks_mut(EXCHANGE_BLOCK as usize).enumerate() {
                    // No device, one of them, or all.
                    let by = block % (devices + 2);
                    if by != device && by != devices {
                        bytes.fill(idle);
                    }
                }
                bytes
            };
            let contents: Vec<Vec<u8>> = (0..devices).map(filled).collect();
            let buffers = Buffers::new(exchange, &contents);
            let of = &buffers.shared();
            exchange
                .combine(&[Fold { of, elem, reduce, to_root: false, idle: Some([idle; 16]) }], &[])
                .unwrap();
            let expected = folded(elem, reduce, &contents);
            let all_right = buffers.read(exchange).iter().all(|copy| *copy == expected);
            assert!(all_right, "{reduce:?} of {elem} on {devices}");
        }
    }

    /// Pieces that begin and end anywhere, beside a fold that only the root needs.
    fn share_pieces(exchange: &Exchange) {
        let devices = exchange.devices.len();
        let contents: Vec<Vec<u8>> = (0..devices).map(|d| vec![d as u8; 10_007]).collect();
        let (all, rooted, sums) = (
            Buffers::new(exchange, &contents),
            Buffers::new(exchange, &contents),
            Buffers::new(exchange, &contents),
        );
        let borders: Vec<usize> = (0..=devices).map(|d| 3 + d * 10_001 / devices).collect();
        let (all_shared, rooted_shared, sums_shared) = (all.shared(), rooted.shared(), sums.shared());
        let pieces = |of, to_root| {
            let piece = move |(owner, border): (usize, &[usize])| Piece {
                of,
                owner,
                start: border[0],
                bytes: border[1] - border[0],
                to_root,
            };
            borders.windows(2).enumerate().map(piece)
        };
        let pieces: Vec<Piece> = pieces(&all_shared, false).chain(pieces(&rooted_shared, true)).collect();
        let fold = Fold { of: &sums_shared, elem: Elem::U8, reduce: Reduce::Sum, to_root: true, idle: None };
        exchange.combine(&[fold], &pieces).unwrap();

        let expected = |device: usize| {
            let mut bytes = contents[device].clone();
            for (owner, border) in borders.windows(2).enumerate() {
                bytes[border[0]..border[1]].fill(owner as u8);
            }
            bytes
        };
        for (device, bytes) in all.read(exchange).into_iter().enumerate() {
            assert!(bytes == expected(device), "device {device} of {devices}");
        }
        let rooted = rooted.read(exchange);
        assert!(rooted[0] == expected(0) && rooted[1..] == contents[1..]);
        let total = (0..devices).sum::<usize>() as u8;
        assert!(sums.read(exchange)[0].iter().all(|b| *b == total));
    }

    fn read_peers_and_move(exchange: &Exchange) {
        let contents: Vec<Vec<u8>> =
            (0..exchange.devices.len()).map(|d| content(Elem::U8, 1000, d)).collect();
        let buffers = Buffers::new(exchange, &contents);
        let shared = buffers.shared();
        exchange.move_within(&shared, 1, 900, 0, 100).unwrap();
        exchange.barrier().unwrap();
        let (addresses, _kept) = exchange.peer_copies(0, 1, &[&shared]).unwrap();
        // What the root reads of its peer comes into its own copy.
        let (into, from) = (shared.on(0), shared.on(1));
        let mut list = List::default();
        list.push(&Task { into, from, bytes: 1000, fold: None, marks: (0, 0) }, addresses[0]);
        let memory = exchange.upload(0, &list.tasks).unwrap();
        exchange.launch(0, memory.address(), &list).unwrap();
        exchange.barrier().unwrap();
        let mut expected = contents[1].clone();
        expected.copy_within(0..100, 900);
        let read = buffers.read(exchange);
        assert!(read[0] == expected && read[1] == expected);
    }

    fn exercise(exchange: &Exchange) {
        fold_everything(exchange);
        fold_what_was_filled(exchange);
        share_pieces(exchange);
        read_peers_and_move(exchange);
    }

    #[test]
    fn host_devices_read_each_other() {
        for count in 2..=5 {
            exercise(&over_hosts(count, true));
            exercise(&Exchange { mark_bytes: 0, ..over_hosts(count, true) });
        }
    }

    #[test]
    fn copies_and_little_scratch_give_the_same() {
        for (count, scratch_bytes) in [(2, SCRATCH_BYTES), (3, 4096), (4, 256)] {
            exercise(&Exchange { scratch_bytes, ..over_hosts(count, false) });
        }
    }

    #[test]
    fn errors_name_devices_and_buffers() {
        let exchange = over_hosts(2, false);
        let buffers = Buffers::new(&exchange, &[vec![0; 100], vec![0; 100]]);
        let shared = Shared { bytes: 1000, ..buffers.shared() };
        let piece = Piece { of: &shared, owner: 0, start: 0, bytes: 1000, to_root: false };
        let error = exchange.combine(&[], &[piece]).unwrap_err().to_string();
        let expected = "host:1: exchange of `buffer` between host:0, host:1: copy from host:0 failed: ";
        assert!(error.starts_with(expected), "{error}");
    }

    /// Host devices with a library that notes what it is asked for.
    struct Library {
        host: HostLinks,
        asked: Arc<Mutex<Vec<String>>>,
    }

    impl Links for Library {
        fn name(&self) -> String {
            "library".to_owned()
        }

        fn reads_peers(&self) -> bool {
            self.host.reads_peers()
        }

        fn barrier(&self) -> Result<(), DeviceError> {
            self.host.barrier()
        }

        fn copy(&self, to: Spot, from: Spot, bytes: usize) -> Result<(), DeviceError> {
            self.host.copy(to, from, bytes)
        }

        fn collectives(&self) -> Option<&dyn Collectives> {
            Some(self)
        }
    }

    impl Collectives for Library {
        fn reduces(&self, elem: Elem, _: Reduce) -> bool {
            elem == Elem::U32
        }

        fn all_reduce(&self, folds: &[Fold]) -> Result<(), DeviceError> {
            self.asked.lock().unwrap().extend(folds.iter().map(|f| format!("reduce {}", f.of.bytes)));
            Ok(())
        }

        fn broadcast(&self, pieces: &[Piece]) -> Result<(), DeviceError> {
            self.asked.lock().unwrap().extend(pieces.iter().map(|p| format!("broadcast {}", p.bytes)));
            Ok(())
        }
    }

    #[test]
    fn a_library_gets_what_it_can_do_and_is_worth_it() {
        let large = COLLECTIVE_BYTES;
        let without_access = ["reduce 64", &format!("reduce {large}"), "broadcast 32", "broadcast 32"];
        for (reads_peers, expected) in [(true, &without_access[1..2]), (false, &without_access)] {
            let (devices, asked) = (hosts(2), Arc::default());
            let host = HostLinks::new(&devices, reads_peers);
            let links = Box::new(Library { host, asked: Arc::clone(&asked) });
            let exchange = Exchange::over(&devices, links).unwrap();
            let of = |bytes: usize| Buffers::new(&exchange, &[vec![0; bytes], vec![0; bytes]]);
            let buffers = [of(64), of(large), of(64)];
            let shared: Vec<Shared> = buffers.iter().map(Buffers::shared).collect();
            let elems = [Elem::U32, Elem::U32, Elem::I128].into_iter();
            let fold = |(of, elem)| Fold { of, elem, reduce: Reduce::Sum, to_root: false, idle: None };
            let folds: Vec<Fold> = shared.iter().zip(elems).map(fold).collect();
            exchange.combine(&folds, &[]).unwrap();
            assert_eq!(*asked.lock().unwrap(), expected);
        }
    }

    #[test]
    fn the_kernel_compiles_for_a_gpu() {
        let source = dkb_kernels::cuda_builtin_unit(&EXCHANGE);
        match nvrtc::compile_cubin(&source, "sm_90") {
            Ok(image) => assert!(image.starts_with(b"\x7fELF")),
            Err(DeviceError::Unavailable(why)) => eprintln!("skipped: {why}"),
            Err(e) => panic!("{e}"),
        }
    }

    /// Time of a sum over all devices, after one that warms up.
    fn time_sum(exchange: &Exchange, bytes: usize) {
        let memory: Vec<Box<dyn Memory>> =
            exchange.devices.iter().map(|device| device.alloc(bytes).unwrap()).collect();
        let shared =
            Shared { name: "buffer", memory: memory.iter().map(|m| m.as_ref()).collect(), offset: 0, bytes };
        let fold = Fold { of: &shared, elem: Elem::I64, reduce: Reduce::Sum, to_root: false, idle: None };
        let mut took_us = 0;
        for _ in 0..2 {
            let started = Instant::now();
            exchange.combine(&[fold], &[]).unwrap();
            exchange.devices.iter().for_each(|device| device.synchronize().unwrap());
            took_us = started.elapsed().as_micros();
        }
        eprintln!("  sum of {bytes} bytes: {took_us} us");
    }

    #[test]
    fn gpus_give_the_same_every_way() {
        let gpus = match cuda::availability() {
            Ok(gpus) => gpus.models.len(),
            Err(e) => return eprintln!("skipped: {e}"),
        };
        let mut groups = vec![vec![0, 0], vec![0, 0, 0]];
        match gpus {
            1 => eprintln!("skipped: what takes two GPUs, for there is one"),
            _ => {
                groups.extend([vec![0, 1], (0..gpus).collect(), [0, 0].into_iter().chain(1..gpus).collect()])
            }
        }
        for (ordinals, way) in groups.iter().flat_map(|g| [Way::Nccl, Way::Peer, Way::Host].map(|w| (g, w))) {
            let devices = cuda::open(ordinals, Some(1 << 30)).unwrap();
            let links = match CudaLinks::new(&devices.iter().collect::<Vec<_>>(), Some(way)) {
                Ok(links) => links,
                Err(e) => {
                    eprintln!("skipped: {way:?} among GPUs {ordinals:?}: {e}");
                    continue;
                }
            };
            eprintln!("GPUs {ordinals:?}: {}", links.name());
            let devices: Vec<Arc<dyn Device>> =
                devices.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect();
            let exchange = Exchange::over(&devices, Box::new(links)).unwrap();
            exercise(&exchange);
            [64, 1 << 20, 16 << 20, 256 << 20].iter().for_each(|bytes| time_sum(&exchange, *bytes));
        }
    }
}
