"""Compiles the kernels of a plan in Triton to cubins, ahead of time and without a GPU.

Run as `python3 -I -B - probe`, `check REQUEST` or `compile REQUEST OUTPUT`, this text on standard input, in the
folder that holds `plan.py`, the plan's source. REQUEST is JSON: `arch`, `limit_s`, `constants` (names and integers
that the source may use) and `kernels` (`name`, `types` of its arguments, `constexprs`, `num_warps`, `num_stages`,
`divisible`: positions of arguments that are multiples of 16). OUTPUT is a line of JSON, a list of `name`,
`divisible`, `num_warps`, `shared_bytes` and `cubin_bytes`, and behind it the cubins.

Exit status: 0, 3 with the error on standard error, or 4 where Triton is missing.

Invariant: importing Python runs it, and Triton evaluates parts of a kernel while it compiles it; so of the source
nothing is imported, compiled or looked up that `Checker` has not allowed by name.

What is relied on of Triton (version 3.6.0, unless a check says otherwise): `compiler/compiler.py` for `ASTSource`,
`compile` and the metadata, `backends/nvidia/compiler.py` for the options.
"""

import ast
import importlib.metadata
import importlib.util
import json
import os
import signal
import sys
import tokenize

SOURCE = "plan.py"

# What a kernel may use of `triton.language`. Absent on purpose: modules, whose own imports would be in reach, inline
# assembly, output, tensor descriptors and generators of random numbers.
LANGUAGE = set(
    """
    abs add advance arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas atomic_max atomic_min
    atomic_or atomic_xchg atomic_xor broadcast broadcast_to cast cat cdiv ceil clamp constexpr cos cumprod cumsum
    debug_barrier div_rn dot erf exp exp2 expand_dims fdiv flip floor fma full gather histogram interleave join load log
    log2 make_block_ptr max max_constancy max_contiguous maximum min minimum mul multiple_of num_programs permute
    pointer_type program_id range ravel reduce reduce_or reshape rsqrt sigmoid sin softmax sort split sqrt sqrt_rn
    static_assert static_range store sub sum swizzle2d topk trans umulhi view where xor_sum zeros zeros_like
    int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64
    """.split()
)
MATH = set("abs ceil cos div_rn erf exp exp2 fdiv floor fma log log2 rsqrt sin sqrt sqrt_rn umulhi".split())
BUILTINS = {"range", "min", "max"}
RESERVED = BUILTINS | {"tl", "triton"}
STATEMENTS = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Return, ast.Pass)
OPERATORS = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)
REFUSED_OPERATORS = (ast.Pow, ast.MatMult, ast.In, ast.NotIn)
COMPUTING = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp)
EXPRESSIONS = COMPUTING + (ast.Subscript, ast.Slice, ast.Tuple, ast.List)


class Refused(Exception):
    """What is wrong with the source, and in which line of it."""

    def __init__(self, line, message):
        super().__init__(f"{SOURCE}:{line}: {message}")


def refuse(node, message):
    raise Refused(getattr(node, "lineno", 1), message)


class Checker:
    """The allow-list: what is not named here is refused."""

    def __init__(self, tree, constants):
        self.functions = {}
        self.constants = set(constants)
        for node in tree.body:
            self.top(node)
        for function in self.functions.values():
            self.function(function)

    def top(self, node):
        match node:
            case ast.Import(names=[ast.alias(name="triton", asname=None)]):
                return
            case ast.Import(names=[ast.alias(name="triton.language", asname="tl")]):
                return
            case ast.Import() | ast.ImportFrom():
                refuse(node, "the only imports are `import triton` and `import triton.language as tl`")
            case ast.Expr(value=ast.Constant(value=str())):
                return
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if is_constant(value):
                self.declare(node, name)
                self.constants.add(name)
            case ast.FunctionDef():
                self.declare(node, node.name)
                self.functions[node.name] = node
            case _:
                refuse(
                    node,
                    "at the top there are imports, functions under `@triton.jit`, and constants, "
                    "NAME = number or NAME = tl.constexpr(number)",
                )

    def declare(self, node, name):
        own_name(node, name)
        if name in self.constants or name in self.functions:
            refuse(node, f"`{name}` is taken already")

    def function(self, function):
        match function.decorator_list:
            case [ast.Attribute(value=ast.Name(id="triton"), attr="jit")]:
                pass
            case _:
                refuse(function, f"`{function.name}` must be decorated by `@triton.jit` and nothing else")
        args = function.args
        if args.posonlyargs or args.kwonlyargs or args.vararg or args.kwarg or args.defaults:
            refuse(function, f"parameters of `{function.name}` are plain names without defaults")
        if function.returns or getattr(function, "type_params", None):
            refuse(function, f"`{function.name}` has no annotation but `tl.constexpr` of parameters")
        local = set()
        for arg in args.args:
            own_name(arg, arg.arg)
            self.annotation(arg.annotation)
            local.add(arg.arg)
        for node in ast.walk(function):
            if isinstance(getattr(node, "ctx", None), ast.Store) and not isinstance(node, (ast.Name, ast.Tuple)):
                refuse(node, "only names can be assigned")
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own_name(node, node.id)
                if node.id in self.functions or node.id in self.constants:
                    refuse(node, f"`{node.id}` is taken already")
                local.add(node.id)
        self.values = local | self.constants | set(self.functions)
        for statement in function.body:
            self.statement(statement)

    def annotation(self, node):
        match node:
            case None | ast.Attribute(value=ast.Name(id="tl"), attr="constexpr"):
                return
        refuse(node, "the only annotation is `tl.constexpr`")

    def statement(self, node):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                return
            case ast.AnnAssign():
                self.annotation(node.annotation)
                self.expression(node.target)
                if node.value:
                    self.expression(node.value)
                return
        if not isinstance(node, STATEMENTS):
            refuse(node, f"`{type(node).__name__}` is not allowed in a kernel")
        for child in children(node):
            if isinstance(child, ast.stmt):
                self.statement(child)
            else:
                self.expression(child)

    def expression(self, node):
        match node:
            case ast.Constant(value=bool() | int() | float() | None):
                return
            case ast.Constant():
                refuse(node, "of constants other than numbers, only text as the argument of a call is allowed")
            case ast.Name(id=name):
                if name not in self.values:
                    refuse(node, f"`{name}` is not allowed here: it is neither declared nor a function of `tl`")
            case ast.Attribute():
                self.attribute(node)
            case ast.Call():
                self.call(node)
            case _ if isinstance(node, EXPRESSIONS):
                for child in children(node):
                    self.expression(child)
            case _:
                refuse(node, f"`{type(node).__name__}` is not allowed in a kernel")

    def attribute(self, node):
        match node:
            case ast.Attribute(value=ast.Name(id="tl"), attr=name) if name in LANGUAGE:
                return
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="tl"), attr="math"), attr=name
            ) if name in MATH:
                return
        refuse(node, f"`{ast.unparse(node)}` is not allowed: of attributes, there are some of `tl` and `.to(...)`")

    def call(self, node):
        match node.func:
            case ast.Name(id=name) if name in BUILTINS or name in self.functions:
                pass
            case ast.Name(id=name):
                refuse(node, f"`{name}` cannot be called: it is neither a function of this source nor of `tl`")
            case ast.Attribute(value=value, attr="to") if not is_module(value):
                self.expression(value)
            case ast.Attribute():
                self.attribute(node.func)
            case _:
                refuse(node, f"`{ast.unparse(node.func)}` cannot be called")
        for arg in node.args + node.keywords:
            if isinstance(arg, ast.keyword):
                if arg.arg is None or arg.arg.startswith("_"):
                    refuse(node, "keyword arguments are given by plain names")
                arg = arg.value
            if not (isinstance(arg, ast.Constant) and isinstance(arg.value, str)):
                self.expression(arg)


def children(node):
    """What a node consists of, but for operators, which are checked."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, REFUSED_OPERATORS):
            refuse(node, f"the operator `{type(child).__name__}` is not allowed in a kernel")
        if not isinstance(child, OPERATORS):
            yield child


def is_module(node):
    match node:
        case ast.Name(id="tl" | "triton") | ast.Attribute(value=ast.Name(id="tl"), attr="math"):
            return True
    return False


def is_constant(node):
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id="tl"), attr="constexpr"), args=[value], keywords=[]
        ):
            return is_number(value)
    return is_number(node)


def is_number(node):
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return is_number(operand)
        case ast.Constant(value=int() | float()):
            return True
    return False


def own_name(node, name):
    if "__" in name or name in RESERVED:
        refuse(node, f"`{name}` is not a name for something of your own")


def parse(constants):
    """The checked source."""
    with open(SOURCE, "rb") as file:
        source = file.read()
    try:
        # A declared encoding would let Python and this check read different texts.
        if tokenize.detect_encoding(iter(source.splitlines(True)).__next__)[0] != "utf-8":
            raise Refused(1, "the source must be UTF-8 without a byte order mark")
        for number, line in enumerate(source.decode("utf-8").split("\n"), 1):
            if any(ord(c) < 32 and c != "\t" or ord(c) == 127 for c in line):
                raise Refused(number, "control characters other than tabs and line feeds are not allowed")
        tree = ast.parse(source, SOURCE)
    except SyntaxError as error:
        raise Refused(error.lineno or 1, error.msg)
    except (ValueError, RecursionError, MemoryError) as error:
        raise Refused(1, f"not Python: {error}")
    try:
        Checker(tree, constants)
    except RecursionError:
        raise Refused(1, "expressions are nested too deeply")
    return tree


def check_parameters(tree, kernel):
    """A kernel's parameters are its arguments, and then its constants, each once and in any order."""
    name, types, constants = kernel["name"], kernel["types"], kernel["constexprs"]
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        raise Refused(1, f"there is no kernel `{name}`")
    names = [arg.arg for arg in found[0].args.args]
    if len(names) < len(types) or set(names[len(types) :]) != set(constants):
        wanted = f"{len(types)} for `args`" + "".join(f", `{c}`" for c in constants)
        refuse(found[0], f"`{name}` has the parameters {', '.join(names)}; the plan gives {wanted}")
    return names


def compile_kernel(module, names, kernel, arch):
    """The cubin of one kernel, and what a launch must know."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = dict(zip(names, kernel["types"]))
    source = ASTSource(
        getattr(module, kernel["name"]),
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs=kernel["constexprs"],
        attrs={(at,): [["tt.divisibility", 16]] for at in kernel["divisible"]},
    )
    # No contraction of products and sums, as in other plans.
    options = {
        "num_warps": kernel["num_warps"],
        "num_stages": kernel["num_stages"],
        "enable_fp_fusion": False,
    }
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    metadata = compiled.metadata
    # What a launch by address, grid, block and shared memory alone cannot provide.
    needs = {
        "global scratch memory (tensor descriptors)": metadata.global_scratch_size > 0,
        "profiler memory": metadata.profile_scratch_size > 0,
        "clusters of blocks": metadata.num_ctas != 1,
        "a cooperative launch": metadata.launch_cooperative_grid,
        "a dependent launch": metadata.launch_pdl,
        "tensor descriptors": bool(metadata.tensordesc_meta),
    }
    for what, needed in needs.items():
        if needed:
            raise Refused(1, f"`{kernel['name']}` needs {what}, which plans cannot use")
    entry = {
        "name": kernel["name"],
        "symbol": metadata.name,
        "divisible": kernel["divisible"],
        "num_warps": metadata.num_warps,
        "shared_bytes": metadata.shared,
        "cubin_bytes": len(compiled.asm["cubin"]),
    }
    return entry, compiled.asm["cubin"]


def load(tree, constants):
    """The source's module. Triton reads the text again; what it reads must be what was checked."""
    import types
    import triton.language

    module = types.ModuleType("plan")
    sys.modules["plan"] = module
    for name, value in constants.items():
        setattr(module, name, triton.language.constexpr(value))
    exec(compile(tree, SOURCE, "exec"), module.__dict__)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            read = getattr(module, node.name).parse().body[0]
            if any(ast.dump(a) != ast.dump(b) for a, b in [(read.args, node.args)] + list(zip(read.body, node.body))):
                refuse(node, f"Triton reads `{node.name}` differently from Python")
    return module


def explain(error, module):
    """The lines of an error of Triton, innermost first, with places in the source."""
    functions = [f for f in vars(module).values() if hasattr(f, "raw_src")]
    lines, told = [], None
    while error is not None:
        node, src = getattr(error, "node", None), getattr(error, "src", None)
        text = str(error) if src is None else error.error_message
        place = [f for f in functions if f.src == src]
        if place and hasattr(node, "lineno"):
            # Triton counts from the line of `def`; decorator and comments may stand in front of it.
            first = place[0].starting_line_number + len(place[0].raw_src) - len(src.splitlines())
            lines.append(f"{SOURCE}:{first + node.lineno - 1}: {text or 'called from here'}")
        elif text and text != told:
            lines.append(f"{type(error).__name__}: {text}")
        error, told = error.__cause__, text
    return "\n".join(reversed(lines))


def compile_all(request, output):
    tree = parse(request["constants"])
    names = [check_parameters(tree, kernel) for kernel in request["kernels"]]
    if find_triton() is None:
        print("no module `triton`", file=sys.stderr)
        return 4
    module = load(tree, request["constants"])
    entries, images = [], []
    for kernel, its_names in zip(request["kernels"], names):
        try:
            entry, image = compile_kernel(module, its_names, kernel, request["arch"])
        except Refused:
            raise
        except Exception as error:
            print(explain(error, module), file=sys.stderr)
            return 3
        entries.append(entry)
        images.append(image)
    with open(output, "wb") as file:
        file.write(json.dumps(entries).encode() + b"\n")
        for image in images:
            file.write(image)
    return 0


def find_triton():
    spec = importlib.util.find_spec("triton")
    return spec.origin and os.path.dirname(os.path.realpath(spec.origin)) if spec else None


def probe():
    """Triton's version; what reading and running it takes, for a sandbox."""
    folder = find_triton()
    if folder is None:
        return 4
    print(
        json.dumps(
            {
                "version": importlib.metadata.version("triton"),
                "read": [sys.prefix, sys.base_prefix, os.path.dirname(folder)],
                "programs": [sys.executable, os.path.join(folder, "backends/nvidia/bin/ptxas")],
            }
        )
    )
    return 0


def main(mode, *paths):
    # `-I` keeps the working directory out of the path, and with it what PYTHONPATH names.
    sys.path += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(path)]
    if mode == "probe":
        return probe()
    with open(paths[0], encoding="utf-8") as file:
        request = json.load(file)
    signal.alarm(request["limit_s"])
    try:
        if mode == "compile":
            return compile_all(request, paths[1])
        tree = parse(request["constants"])
        for kernel in request["kernels"]:
            check_parameters(tree, kernel)
        return 0
    except Refused as error:
        print(error, file=sys.stderr)
        return 3


sys.exit(main(*sys.argv[1:]))
