//! Ordered relations to a plan: pipelines, their sinks, and the buffers between them.
//!
//! [`Emitter::produce`] returns open pipelines whose scope holds a relation's columns; a sink closes them. The
//! build side of a join and the input of an aggregate are closed before the pipeline that uses them goes on, so
//! phases come out in the order in which they run.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use dkb_kernels::{
    Arg, Buffer, ColumnRepr, Elem, Launch, On, Over, Param, Phase, Physical, Predicate, Reduce, ResultColumn,
    ResultSpec, Shard, Size, SqlType, Start,
};
use indexmap::IndexMap;

use crate::PlanError;
use crate::catalog::TableInfo;
use crate::divide::{Divisible, Division, Touch};
use crate::ir::{Cmp, ColId, ColumnDef, Columns, Expr, Kind, Rel};
use crate::lower::type_range;
use crate::pipe::{Form, Pipe, Value, arg_name};

/// Bytes of a piece of text, where only its number is known.
const TEXT_BYTES: usize = 32;

/// Bytes that an access of a buffer moves: a sector of device memory.
const ACCESS_BYTES: usize = 32;

/// Why emitting stopped.
#[derive(Debug)]
pub(crate) enum Fault {
    Plan(PlanError),
    /// Text of this table and column is needed where only codes serve: start over with a dictionary for it.
    NeedDict(usize, usize),
    /// State can be divided into parts: start over with kernels that skip other parts' keys.
    Divide(Division),
}

impl From<PlanError> for Fault {
    fn from(e: PlanError) -> Fault {
        Fault::Plan(e)
    }
}

/// A column held in a buffer between pipelines.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) buffer: String,
    pub(crate) valid: Option<String>,
    pub(crate) form: Form,
}

impl Stored {
    /// Its value at an index, an expression of the reading kernel, and the arguments that this takes.
    pub(crate) fn at(&self, index: &str) -> (Value, Vec<Arg>) {
        let mut args = vec![Arg::Buffer(self.buffer.clone())];
        let code = format!("{}[{index}]", self.buffer);
        let code = if self.form == Form::Bool { format!("({code} != 0)") } else { code };
        let mut value = Value::new(code, self.form);
        if let Some(valid) = &self.valid {
            args.push(Arg::Buffer(valid.clone()));
            value.null = Some(format!("!{valid}[{index}]"));
        }
        (value, args)
    }
}

/// A kernel over the entries of a dictionary: its predicates, each with the buffer of its flags.
type DictionaryKernel = (Pipe, Vec<(String, String)>);

/// The plan under construction.
pub(crate) struct Emitter<'a> {
    pub(crate) tables: &'a [TableInfo],
    pub(crate) columns: Columns,
    pub(crate) params: IndexMap<String, Param>,
    pub(crate) values: &'a BTreeMap<String, crate::ParamValue>,
    pub(crate) denied: &'a [String],
    /// Text columns that must be read as codes.
    pub(crate) dicts: &'a BTreeSet<(usize, usize)>,
    /// The states that are divided, once they are chosen.
    pub(crate) divided: Option<&'a Division>,
    /// Bytes of arrays from which on a build side's rows are ranked instead.
    pub(crate) large_bytes: f64,
    pub(crate) inputs: IndexMap<String, IndexMap<String, ColumnRepr>>,
    pub(crate) sizes: IndexMap<String, Size>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) assumes: Vec<String>,
    pub(crate) kernels: Vec<String>,
    dictionaries: IndexMap<(usize, usize), DictionaryKernel>,
    /// Aggregates and build sides that exist already, by what they compute.
    pub(crate) states: HashMap<String, crate::aggregate::AggState>,
    pub(crate) lookups: HashMap<String, (crate::join::Lookup, Vec<crate::pipe::Dependency>)>,
    /// The state that may be divided by key, once all phases are known.
    pub(crate) shard: Option<Shard>,
    /// States that may be divided, and by phase, what its kernels fill and read.
    pub(crate) divisible: Vec<Divisible>,
    pub(crate) touches: Vec<(String, Vec<Touch>)>,
    serial: usize,
    pub(crate) explain: Vec<String>,
}

impl<'a> Emitter<'a> {
    pub(crate) fn new(
        tables: &'a [TableInfo],
        columns: Columns,
        params: IndexMap<String, Param>,
        values: &'a BTreeMap<String, crate::ParamValue>,
        options: &'a crate::PlanOptions,
        dicts: &'a BTreeSet<(usize, usize)>,
        divided: Option<&'a Division>,
    ) -> Self {
        let mut emitter = Emitter {
            tables,
            columns,
            params,
            values,
            denied: &options.denied,
            dicts,
            divided,
            large_bytes: options.large_bytes(),
            inputs: IndexMap::new(),
            sizes: IndexMap::new(),
            buffers: Vec::new(),
            phases: Vec::new(),
            assumes: Vec::new(),
            kernels: Vec::new(),
            dictionaries: IndexMap::new(),
            states: HashMap::new(),
            lookups: HashMap::new(),
            shard: None,
            divisible: Vec::new(),
            touches: Vec::new(),
            serial: 0,
            explain: Vec::new(),
        };
        emitter.declare_part();
        emitter
    }

    /// The element type of the codes of a dictionary.
    pub(crate) fn code_elem(&self, t: usize, c: usize) -> Elem {
        match self.tables[t].columns[c].dict_entries {
            Some(n) if n <= 1 << 8 => Elem::U8,
            Some(n) if n <= 1 << 16 => Elem::U16,
            _ => Elem::U32,
        }
    }

    pub(crate) fn next_serial(&mut self) -> usize {
        self.serial += 1;
        self.serial
    }

    /// The index of an assumption, which a kernel passes to `refute`.
    pub(crate) fn assume(&mut self, text: String) -> Result<usize, Fault> {
        if self.denied.contains(&text) {
            return Err(PlanError::Unsupported(format!("the data violates `{text}`")).into());
        }
        if let Some(k) = self.assumes.iter().position(|a| *a == text) {
            return Ok(k);
        }
        if self.assumes.len() == 32 {
            return Err(PlanError::Unsupported("more than 32 assumptions in a plan".to_owned()).into());
        }
        self.assumes.push(text);
        Ok(self.assumes.len() - 1)
    }

    /// Estimates for a relation, by the rules of join ordering.
    pub(crate) fn estimate<T>(&self, f: impl FnOnce(&crate::order::Order<'_>) -> T) -> T {
        let mut columns = self.columns.clone();
        f(&crate::order::Order {
            tables: self.tables,
            columns: &mut columns,
            values: self.values,
            denied: self.denied,
            notes: Vec::new(),
        })
    }

    // ------------------------------------------------------------ declarations

    pub(crate) fn declare(
        &mut self,
        name: String,
        ty: Elem,
        len: &str,
        start: Start,
        reduce: Reduce,
    ) -> String {
        self.buffers.push(Buffer { name: name.clone(), ty, len: len.to_owned(), start, reduce });
        name
    }

    /// A size that a counter watches; the counter's buffer is `{name}_count`.
    pub(crate) fn declare_size(&mut self, name: &str, value: String, pow2: bool, reduce: Reduce) -> String {
        let counter = self.declare(format!("{name}_count"), Elem::U64, "1", Start::Zero, reduce);
        self.sizes.insert(name.to_owned(), Size { value, counter: Some(counter.clone()), pow2 });
        counter
    }

    /// Table name, column name, and the representation in which the column is read.
    fn repr(&self, table: usize, column: usize) -> Result<(String, String, ColumnRepr), Fault> {
        let info = &self.tables[table];
        let field = info.schema.field(column);
        let stats = &info.columns[column];
        let sql = crate::lower::sql_type(field.data_type())
            .ok_or_else(|| PlanError::Unsupported(format!("type {}", field.data_type())))?;
        let physical = match sql {
            SqlType::Utf8 => match stats.dict_entries {
                Some(n) if n <= 1 << 8 => Physical::Dict(Elem::U8),
                Some(n) if n <= 1 << 16 => Physical::Dict(Elem::U16),
                Some(_) => Physical::Dict(Elem::U32),
                None if self.dicts.contains(&(table, column)) => Physical::Dict(Elem::U32),
                None => Physical::Utf8,
            },
            SqlType::Bool => Physical::Fixed(Elem::U8),
            SqlType::Float32 | SqlType::Float64 => Physical::Fixed(Elem::F64),
            _ => {
                let (min, max) = match (stats.min, stats.max) {
                    (Some(min), Some(max)) => (min, max),
                    _ => type_range(sql).expect("integers and decimals have ranges"),
                };
                Physical::Fixed(Elem::narrowest(min, max))
            }
        };
        let (table_name, name) = (info.name.clone(), field.name().clone());
        if table_name.contains(['.', '(', ' ']) || name.contains(['.', '(', ')', ' ']) {
            return Err(PlanError::Unsupported(format!("the name of column `{table_name}.{name}`")).into());
        }
        Ok((table_name, name, ColumnRepr { sql, physical, nullable: stats.nullable }))
    }

    /// Makes the column an input of the plan.
    fn input(&mut self, table: usize, column: usize) -> Result<(String, String, ColumnRepr), Fault> {
        let (table_name, name, repr) = self.repr(table, column)?;
        self.inputs.entry(table_name.clone()).or_default().insert(name.clone(), repr);
        Ok((table_name, name, repr))
    }

    /// Declares what reading a column's value takes as arguments of the pipeline's kernel.
    pub(crate) fn register(&mut self, pipe: &mut Pipe, id: ColId) {
        for arg in pipe.needs.get(&id).cloned().unwrap_or_default() {
            if let Arg::Column(t, c) | Arg::Offsets(t, c) = &arg {
                let table = self.tables.iter().position(|i| i.name == *t).expect("a table of the query");
                let column = self.tables[table].schema.index_of(c).expect("a column of the table");
                self.input(table, column).expect("checked when the scan opened");
            }
            pipe.arg(arg);
        }
    }

    pub(crate) fn dict_args(&mut self, pipe: &mut Pipe, t: usize, c: usize) -> (String, String) {
        let table = self.tables[t].name.clone();
        let column = self.tables[t].schema.field(c).name().clone();
        let offsets = pipe.arg(Arg::DictOffsets(table.clone(), column.clone()));
        (offsets, pipe.arg(Arg::DictBytes(table, column)))
    }

    /// A buffer with one flag a dictionary entry: whether the predicate over the column `id` is true for it.
    pub(crate) fn dictionary_predicate(
        &mut self,
        t: usize,
        c: usize,
        id: ColId,
        predicate: &Expr,
    ) -> Result<String, Fault> {
        let general = predicate.substitute(&|_| Some(Expr::col(usize::MAX, SqlType::Utf8)));
        let key = format!("{general:?}");
        let known = self.dictionaries.get(&(t, c)).and_then(|(_, list)| list.iter().find(|(k, _)| *k == key));
        if let Some((_, buffer)) = known {
            return Ok(buffer.clone());
        }
        let (table, column, _) = self.input(t, c)?;
        let over = Over::Dict(table.clone(), column.clone());
        let (mut pipe, list) = self
            .dictionaries
            .swap_remove(&(t, c))
            .unwrap_or_else(|| (Pipe::new(over, "i", None, 0.0), Vec::new()));
        self.dictionary_scope(&mut pipe, t, c, id);
        let truth = self.truth(&mut pipe, predicate)?;
        let buffer = format!("is_{column}_{}", self.next_serial());
        let len = format!("dict({table}.{column})");
        self.declare(buffer.clone(), Elem::U8, &len, Start::Poison, Reduce::None);
        let name = pipe.buffer(&buffer);
        pipe.line(format!("{name}[i] = {truth};"));
        let mut list = list;
        list.push((key, buffer.clone()));
        self.dictionaries.insert((t, c), (pipe, list));
        Ok(buffer)
    }

    // ------------------------------------------------------------ pipelines

    /// Open pipelines that hold the columns of `rel`; `required` are those that are needed above.
    pub(crate) fn produce(&mut self, rel: &Rel, required: &BTreeSet<ColId>) -> Result<Vec<Pipe>, Fault> {
        match rel {
            Rel::Once => {
                self.sizes.entry("once".to_owned()).or_insert(Size {
                    value: "1".to_owned(),
                    counter: None,
                    pow2: false,
                });
                Ok(vec![Pipe::new(Over::Size("once".to_owned()), "slot", Some(1), 1.0)])
            }
            Rel::Scan { table, columns } => Ok(vec![self.scan(*table, columns, required)?]),
            Rel::Filter { input, predicates } => {
                let mut below = required.clone();
                predicates.iter().for_each(|p| p.collect(&mut below));
                let mut pipes = self.produce(input, &below)?;
                let rows = self.estimate(|o| o.rows(rel));
                let prune = self.pruning(input, predicates);
                for pipe in &mut pipes {
                    for p in &prune {
                        if !pipe.prune.contains(p) {
                            pipe.prune.push(p.clone());
                        }
                    }
                    let bare = pipe.is_bare();
                    let (mut columns, mut share) = (BTreeSet::new(), 1.0);
                    for p in predicates {
                        let named = self.with_named_operand(pipe, p)?;
                        let truth = self.truth(pipe, &named)?;
                        pipe.keep_if(&truth);
                        p.collect(&mut columns);
                        if bare && columns.len() < 2 {
                            share *= self.estimate(|o| o.selectivity(p));
                            if !columns.is_empty() {
                                pipe.test_ahead(share);
                            }
                        }
                    }
                    pipe.rows = rows;
                    pipe.steps
                        .push(format!("filter ({} conditions), about {rows:.0} rows", predicates.len()));
                }
                Ok(pipes)
            }
            Rel::Map { input, defs } => {
                let mut below = required.clone();
                let mut wanted = Vec::new();
                for (id, e) in defs.iter().rev() {
                    if below.remove(id) {
                        e.collect(&mut below);
                        wanted.push((*id, e));
                    }
                }
                let mut pipes = self.produce(input, &below)?;
                for pipe in &mut pipes {
                    for (id, e) in wanted.iter().rev() {
                        self.define(pipe, *id, e)?;
                    }
                }
                Ok(pipes)
            }
            Rel::Join(join) => self.join(join, required),
            Rel::Aggregate(agg) => {
                let state = self.aggregate(agg)?;
                Ok(vec![self.scan_groups(agg, &state)])
            }
        }
    }

    /// A predicate that compares one piece of text with several others cuts it out once, under a name.
    fn with_named_operand(&mut self, pipe: &mut Pipe, predicate: &Expr) -> Result<Expr, Fault> {
        let Kind::Or(list) = &predicate.kind else { return Ok(predicate.clone()) };
        let sides = |e: &Expr| match &e.kind {
            Kind::Cmp(Cmp::Eq, left, right) => Some(((**left).clone(), (**right).clone())),
            _ => None,
        };
        let Some(pairs) = list.iter().map(sides).collect::<Option<Vec<_>>>() else {
            return Ok(predicate.clone());
        };
        let (left, _) = &pairs[0];
        let bytes = |id: &ColId| pipe.env.get(id).is_some_and(|v| v.form == Form::Text);
        let cut = matches!(left.kind, Kind::Substring(..)) && left.columns().iter().all(bytes);
        if !cut || pairs.iter().any(|(l, _)| l != left) {
            return Ok(predicate.clone());
        }
        let (left, id) = (left.clone(), self.columns.len());
        let name = "substring".to_owned();
        self.columns.push(ColumnDef { name, ty: left.ty, range: None, distinct: 1.0, origin: None });
        self.define(pipe, id, &left)?;
        let named = |(_, right): (Expr, Expr)| Expr::eq(Expr::col(id, left.ty), right);
        Ok(Expr::bool(Kind::Or(pairs.into_iter().map(named).collect())))
    }

    fn scan(
        &mut self,
        table: usize,
        columns: &[(ColId, usize)],
        required: &BTreeSet<ColId>,
    ) -> Result<Pipe, Fault> {
        let info = &self.tables[table];
        let mut pipe =
            Pipe::new(Over::Table(info.name.clone()), "i", Some(info.rows.into()), info.rows as f64);
        pipe.steps.push(format!("scan {} ({} rows)", info.name, info.rows));
        pipe.arg(Arg::Rows);
        self.inputs.entry(info.name.clone()).or_default();
        for &(id, column) in columns {
            if !required.contains(&id) {
                continue;
            }
            let (t, c, repr) = self.repr(table, column)?;
            let mut args = Vec::new();
            let (code, form) = match repr.physical {
                Physical::Utf8 => {
                    args.extend([Arg::Offsets(t.clone(), c.clone()), Arg::Bytes(t.clone(), c.clone())]);
                    let code = format!("text_at({}, {}, i)", arg_name(&args[0]), arg_name(&args[1]));
                    (code, Form::Text)
                }
                Physical::Dict(_) => {
                    args.push(Arg::Column(t.clone(), c.clone()));
                    (format!("{}[i]", arg_name(&args[0])), Form::Dict(table, column))
                }
                Physical::Fixed(elem) => {
                    args.push(Arg::Column(t.clone(), c.clone()));
                    let code = format!("{}[i]", arg_name(&args[0]));
                    match repr.sql {
                        SqlType::Bool => (format!("({code} != 0)"), Form::Bool),
                        SqlType::Float32 | SqlType::Float64 => (code, Form::Float),
                        _ => (code, Form::Int(elem)),
                    }
                }
            };
            let mut value = Value::new(code, form);
            if repr.nullable {
                args.push(Arg::Valid(t, c));
                value.null = Some(format!("!{}[i]", arg_name(args.last().expect("just pushed"))));
            }
            pipe.needs.insert(id, args);
            pipe.env.insert(id, value);
        }
        Ok(pipe)
    }

    /// Adds a computed column to the pipeline's scope, as a variable unless it is another column's value.
    pub(crate) fn define(&mut self, pipe: &mut Pipe, id: ColId, e: &Expr) -> Result<(), Fault> {
        self.columns[id].range = self.range(e);
        if let Kind::Col(from) = e.kind {
            let value = pipe.env[&from].clone();
            let needs = pipe.needs.get(&from).cloned().unwrap_or_default();
            self.columns[id].origin = self.columns[from].origin;
            if let Some(derived) = pipe.derived.get(&from).cloned() {
                pipe.derived.insert(id, derived);
            }
            pipe.env.insert(id, value);
            pipe.needs.insert(id, needs);
            return Ok(());
        }
        let v = self.value(pipe, e)?;
        let ty = match v.form {
            Form::Int(Elem::I128) | Form::Packed => "i128",
            Form::Int(_) => "i64",
            Form::Bool => "bool",
            Form::Float => "f64",
            Form::Text => "Str",
            Form::Dict(..) | Form::Fetch(..) => "u32",
        };
        let form = match v.form {
            Form::Int(Elem::I128) => v.form,
            Form::Int(_) => Form::Int(Elem::I64),
            form => form,
        };
        let name = format!("v{id}");
        pipe.bind(&name, format!("const {ty} {name} = {};  // {}", v.code, self.columns[id].name));
        let mut held = Value::new(name, form);
        if let Some(null) = v.null {
            let name = format!("v{id}_null");
            pipe.bind(&name, format!("const bool {name} = {null};"));
            held.null = Some(name);
        }
        pipe.env.insert(id, held);
        pipe.needs.insert(id, vec![]);
        Ok(())
    }

    /// What crosses a sink for a value, and the element type in which it is stored: text of a scan turns into
    /// its row number, computed text into a packed integer.
    pub(crate) fn storable(&mut self, pipe: &mut Pipe, e: &Expr) -> Result<(Value, Elem), Fault> {
        let mut v = match e.kind {
            Kind::Col(id) if pipe.env.get(&id).is_some_and(|v| v.form == Form::Text) => {
                match (self.columns[id].origin, &pipe.over) {
                    (Some((t, c)), Over::Table(_)) if pipe.env[&id].code.ends_with(", i)") => {
                        let null = pipe.env[&id].null.clone();
                        if null.is_some() {
                            let valid = pipe.needs[&id].iter().find(|a| matches!(a, Arg::Valid(..))).cloned();
                            self.register_valid(pipe, t, c, valid)?;
                        }
                        pipe.arg(Arg::FirstRow);
                        Value { code: "u32(first_row + i)".to_owned(), null, form: Form::Fetch(t, c) }
                    }
                    _ => self.packed(pipe, e)?,
                }
            }
            _ => self.value(pipe, e)?,
        };
        if v.form == Form::Text {
            v = self.packed(pipe, e)?;
        }
        let elem = match v.form {
            Form::Int(elem) => match self.range(e) {
                Some((lo, hi)) => Elem::narrowest(lo, hi),
                None if elem == Elem::I128 => Elem::I128,
                None => Elem::I64,
            },
            Form::Bool => Elem::U8,
            Form::Float => Elem::F64,
            Form::Dict(t, c) => self.code_elem(t, c),
            Form::Packed => Elem::I128,
            Form::Fetch(..) => Elem::U32,
            Form::Text => unreachable!("text was packed above"),
        };
        Ok((v, elem))
    }

    fn register_valid(
        &mut self,
        pipe: &mut Pipe,
        t: usize,
        c: usize,
        valid: Option<Arg>,
    ) -> Result<(), Fault> {
        self.input(t, c)?;
        if let Some(valid) = valid {
            pipe.arg(valid);
        }
        Ok(())
    }

    /// The form in which a stored value is read back.
    pub(crate) fn stored_form(form: Form, elem: Elem) -> Form {
        match form {
            Form::Int(_) => Form::Int(elem),
            other => other,
        }
    }

    // ------------------------------------------------------------ closing

    /// Closes a pipeline: adds its kernel and the phase that launches it.
    pub(crate) fn close(
        &mut self,
        mut pipe: Pipe,
        name: &str,
        mut writes: Vec<String>,
        merge: Option<Launch>,
    ) {
        writes.append(&mut pipe.writes);
        // What several phases write is complete when the last of them ends.
        for phase in &mut self.phases {
            phase.writes.retain(|b| !writes.contains(b));
        }
        if !matches!(pipe.over, Over::Table(_)) {
            pipe.arg(Arg::Rows);
            pipe.arg(Arg::FirstRow);
        }
        let steps: Vec<String> = pipe.steps.clone();
        let launch = self.kernel(&pipe, name);
        self.touches.push((name.to_owned(), std::mem::take(&mut pipe.touches)));
        self.explain.push(format!("{name}: {}", steps.join(" -> ")));
        let prune = Predicate::all(pipe.prune);
        self.explain.extend(prune.iter().map(|p| format!("{name}: skips row groups without {p}")));
        self.phases.push(Phase {
            name: name.to_owned(),
            over: pipe.over,
            on: On::Partitions,
            prune,
            writes,
            launches: vec![launch],
            merge,
            hot: false,
        });
    }

    /// Adds a kernel that loops over `rows` and returns its launch.
    fn kernel(&mut self, pipe: &Pipe, name: &str) -> Launch {
        let mut args: Vec<Arg> = pipe.args.iter().cloned().collect();
        args.sort_by_key(|a| match a {
            Arg::Rows => 0,
            Arg::FirstRow => 1,
            Arg::Part | Arg::Parts => 2,
            Arg::Params => 3,
            Arg::Flags => 4,
            Arg::Column(..) | Arg::Valid(..) | Arg::Offsets(..) | Arg::Bytes(..) => 5,
            Arg::DictOffsets(..) | Arg::DictBytes(..) => 6,
            Arg::Len(_) | Arg::Buffer(_) => 7,
            Arg::Peer(_) => 8,
        });
        let steps: String = pipe.steps.iter().map(|s| format!("// {s}\n")).collect();
        let text = format!(
            "{steps}{} {{\n{}{}{}}}\n",
            self.signature(name, &args),
            pipe.head,
            pipe.row_loop(),
            pipe.tail,
        );
        self.kernels.push(text);
        Launch { kernel: name.to_owned(), threads: "rows".to_owned(), args, triton: None }
    }

    /// `extern "C" __global__ void name(…)`.
    pub(crate) fn signature(&self, name: &str, args: &[Arg]) -> String {
        let list: Vec<String> = args.iter().map(|a| format!("{}{}", self.arg_type(a), arg_name(a))).collect();
        let mut text = format!("extern \"C\" __global__ void {name}(");
        let indent = " ".repeat(4);
        let mut column = text.len();
        for (k, arg) in list.iter().enumerate() {
            let last = k + 1 == list.len();
            if column + arg.len() > 108 {
                text.truncate(text.trim_end().len());
                text.push('\n');
                text += &indent;
                column = indent.len();
            }
            text += arg;
            text += if last { "" } else { ", " };
            column += arg.len() + 2;
        }
        text + ")"
    }

    fn arg_type(&self, arg: &Arg) -> String {
        let column = |t: &str, c: &str| match self.inputs[t][c].physical {
            Physical::Fixed(e) | Physical::Dict(e) => format!("const {e}* "),
            Physical::Utf8 => unreachable!("utf8 columns are passed as offsets and bytes"),
        };
        let buffer = |name: &str| {
            let buffer = self.buffers.iter().find(|b| b.name == name);
            buffer.expect("a kernel refers to declared buffers").ty
        };
        match arg {
            Arg::Rows | Arg::FirstRow | Arg::Part | Arg::Parts | Arg::Len(_) => "u64 ".to_owned(),
            Arg::Params => "const Params* ".to_owned(),
            Arg::Flags => "u32* ".to_owned(),
            Arg::Column(t, c) => column(t, c),
            Arg::Valid(..) | Arg::Bytes(..) | Arg::DictBytes(..) => "const u8* ".to_owned(),
            Arg::Offsets(..) | Arg::DictOffsets(..) => "const u32* ".to_owned(),
            Arg::Buffer(b) => format!("{}* ", buffer(b)),
            Arg::Peer(b) => format!("const {}* ", buffer(b)),
        }
    }

    /// A phase of kernels that every device runs for itself, over the range of a size.
    pub(crate) fn each(&mut self, name: &str, size: &str, launches: Vec<Launch>) {
        self.phases.push(Phase {
            name: name.to_owned(),
            over: Over::Size(size.to_owned()),
            on: On::Each,
            prune: None,
            writes: vec![],
            launches,
            merge: None,
            hot: false,
        });
    }

    /// A kernel of fixed text, and its launch.
    pub(crate) fn fixed(&mut self, name: &str, threads: &str, args: Vec<Arg>, body: &str) -> Launch {
        let text = format!("{} {{\n{body}}}\n", self.signature(name, &args));
        self.kernels.push(text);
        Launch { kernel: name.to_owned(), threads: threads.to_owned(), args, triton: None }
    }

    /// Puts the dictionary kernels in front of all phases.
    fn close_dictionaries(&mut self) {
        let mut phases = Vec::new();
        for ((t, c), (mut pipe, _)) in std::mem::take(&mut self.dictionaries) {
            let name = format!(
                "dict_{}_{}",
                self.tables[t].name,
                arg_name(&Arg::Column(String::new(), self.tables[t].schema.field(c).name().clone(),))
            );
            pipe.arg(Arg::Rows);
            pipe.steps.push(format!("predicates over the entries of {}", pipe.over));
            let launch = self.kernel(&pipe, &name);
            phases.push(Phase {
                name,
                over: pipe.over,
                on: On::Each,
                prune: None,
                writes: vec![],
                launches: vec![launch],
                merge: None,
                hot: false,
            });
        }
        phases.append(&mut self.phases);
        self.phases = phases;
    }

    /// Marks the phase that is expected to take longest, by the bytes of the columns that it streams and one access of
    /// each buffer a row.
    pub(crate) fn mark_hot(&mut self) {
        let cost = |phase: &Phase| {
            let Over::Table(name) = &phase.over else { return 0.0 };
            let rows = self.tables.iter().find(|t| t.name == *name).map_or(0, |t| t.rows);
            let bytes = |arg: &Arg| match arg {
                Arg::Column(t, c) => match self.inputs[t][c].physical {
                    Physical::Fixed(elem) | Physical::Dict(elem) => elem.bytes(),
                    Physical::Utf8 => 0,
                },
                Arg::Valid(..) => 1,
                Arg::Offsets(..) => 4,
                Arg::Bytes(..) => TEXT_BYTES,
                Arg::Buffer(_) => ACCESS_BYTES,
                _ => 0,
            };
            let args = phase.launches.iter().flat_map(|l| &l.args);
            rows as f64 * args.map(bytes).sum::<usize>() as f64
        };
        let costs: Vec<f64> = self.phases.iter().map(cost).collect();
        let Some((hot, most)) = costs.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)) else { return };
        self.phases[hot].hot = true;
        let share = if *most > 0.0 { most / costs.iter().sum::<f64>() } else { 1.0 };
        self.explain.push(format!(
            "hot: {}, about {:.0} % of the work",
            self.phases[hot].name,
            share * 100.0
        ));
    }

    /// Closes the query's last pipelines with its result and returns where it lies.
    pub(crate) fn result(
        &mut self,
        mut pipes: Vec<Pipe>,
        outputs: &[(String, Expr, bool)],
    ) -> Result<ResultSpec, Fault> {
        let rows = pipes.iter().map(|p| p.rows).sum::<f64>();
        let most = pipes.iter().try_fold(0u128, |sum, p| Some(sum + p.max_rows?));
        let capacity = (rows * 2.0).max(65_536.0).min(most.map_or(f64::MAX, |m| m as f64)).max(1.0) as u64;
        let counter = self.declare_size("result", capacity.to_string(), false, Reduce::None);
        let mut columns: Vec<ResultColumn> = Vec::new();
        for (index, (name, e, nullable)) in outputs.iter().enumerate() {
            let from = format!("result_{index}");
            let mut any_null = false;
            let mut stored = None;
            for pipe in &mut pipes {
                let (v, elem) = self.storable(pipe, e)?;
                any_null |= v.null.is_some();
                stored = Some((v.form, elem));
            }
            let (form, elem) = stored.expect("a query has pipelines");
            self.declare(from.clone(), elem, "result", Start::Poison, Reduce::None);
            let valid = any_null.then(|| {
                self.declare(format!("{from}_valid"), Elem::U8, "result", Start::Poison, Reduce::None)
            });
            let text = |t: usize, c: usize| {
                format!("{}.{}", self.tables[t].name, self.tables[t].schema.field(c).name())
            };
            let (mut dict, mut fetch) = (None, None);
            match form {
                Form::Dict(t, c) => {
                    dict = Some(text(t, c));
                    self.input(t, c)?;
                }
                Form::Fetch(t, c) => fetch = Some(text(t, c)),
                _ => {}
            }
            columns.push(ResultColumn {
                name: name.clone(),
                ty: e.ty,
                nullable: *nullable,
                from,
                valid,
                dict,
                fetch,
            });
        }
        let last = pipes.len() - 1;
        for (k, mut pipe) in pipes.into_iter().enumerate() {
            let mut lines = Vec::new();
            for ((_, e, _), column) in outputs.iter().zip(&columns) {
                let (v, _) = self.storable(&mut pipe, e)?;
                lines.push(format!("{}[r] = {};", pipe.buffer(&column.from), v.code));
                if let Some(valid) = &column.valid {
                    let present = v.null.map_or("1".to_owned(), |null| format!("!{null}"));
                    lines.push(format!("{}[r] = {present};", pipe.buffer(valid)));
                }
            }
            let (count, len) = (pipe.buffer(&counter), pipe.arg(Arg::Len("result".to_owned())));
            pipe.line(format!("const u64 r = append({count});"));
            pipe.skip_if(format!("r >= {len}"));
            lines.into_iter().for_each(|l| pipe.line(l));
            pipe.steps.push("append to the result".to_owned());
            let name = if last == 0 { "result".to_owned() } else { format!("result_{k}") };
            self.close(pipe, &format!("{name}_rows"), vec![], None);
        }
        self.close_dictionaries();
        self.shard = self.divide()?;
        Ok(ResultSpec { size: "result".to_owned(), columns })
    }
}
