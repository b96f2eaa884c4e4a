# Registers: a tuple of `VecElement`s, which Julia hands to LLVM as one vector.
#
# What it changes: one instruction works on N numbers at once. A register of 16 Float32 works on every
# machine; where the processor's are shorter, LLVM splits it. So the number of lanes is only a question of
# speed, and is asked of the processor when the first call comes.
#
# An intrinsic is called by its name, `ccall("llvm.fma.v16f32", llvmcall, …)`, and plain instructions by a
# body of LLVM: both forms are the same in Julia 1.5 and now.

const Register{N,T} = NTuple{N,VecElement{T}}

# Lanes and element type of every register that kernels are made for: 16, 32 and 64 bytes.
const REGISTERS = ((4, Float32), (8, Float32), (16, Float32), (2, Float64), (4, Float64), (8, Float64))

# The names that LLVM has for an element type and for the integer of its size, and the bits of its fraction.
llvm_names(::Type{Float32}) = ("float", "f32", "i32", 23)
llvm_names(::Type{Float64}) = ("double", "f64", "i64", 52)

# A list of lanes as LLVM writes it: of two registers, those of the second count on from those of the first.
llvm_lanes(lanes) = "<" * join(("i32 $lane" for lane in lanes), ", ") * ">"

for (N, T) in REGISTERS
    name, short, int, fraction = llvm_names(T)
    V, vector, ints = Register{N,T}, "<$N x $name>", "<$N x $int>"
    fma = "llvm.fma.v$N$short"
    body(instruction) = "%r = $instruction $vector %0, %1\nret $vector %r"
    pick(test) = """
        %c = fcmp $test $vector %0, %1
        %r = select <$N x i1> %c, $vector %0, $vector %1
        ret $vector %r"""
    swap = """
        %c = fcmp oeq $vector %0, %1
        %r = select <$N x i1> %c, $vector %2, $vector %0
        ret $vector %r"""
    ordered = """
        %c = fcmp ole $vector %0, %1
        %r = select <$N x i1> %c, $vector %2, $vector %3
        ret $vector %r"""
    unequal = """
        %c = fcmp une $vector %0, %1
        %bits = bitcast <$N x i1> %c to i$N
        %some = icmp ne i$N %bits, 0
        %r = zext i1 %some to i8
        ret i8 %r"""
    spread = """
        %one = insertelement $vector undef, $name %0, i32 0
        %r = shufflevector $vector %one, $vector undef, <$N x i32> zeroinitializer
        ret $vector %r"""
    power = """
        %bits = bitcast $vector %0 to $ints
        %up = shl $ints %bits, <$(join(("$int $fraction" for _ in 1:N), ", "))>
        %r = bitcast $ints %up to $vector
        ret $vector %r"""
    @eval begin
        # a · b + c, rounded once
        @inline multiply_add(a::$V, b::$V, c::$V) = ccall($fma, llvmcall, $V, ($V, $V, $V), a, b, c)
        @inline plus(a::$V, b::$V) = Base.llvmcall($(body("fadd")), $V, Tuple{$V,$V}, a, b)
        @inline minus(a::$V, b::$V) = Base.llvmcall($(body("fsub")), $V, Tuple{$V,$V}, a, b)
        @inline times(a::$V, b::$V) = Base.llvmcall($(body("fmul")), $V, Tuple{$V,$V}, a, b)
        # The second one where either is NaN: what the processor's own instructions do.
        @inline larger(a::$V, b::$V) = Base.llvmcall($(pick("ogt")), $V, Tuple{$V,$V}, a, b)
        @inline smaller(a::$V, b::$V) = Base.llvmcall($(pick("olt")), $V, Tuple{$V,$V}, a, b)
        # x, but z where x equals y
        @inline swap_equal(x::$V, y::$V, z::$V) = Base.llvmcall($swap, $V, Tuple{$V,$V,$V}, x, y, z)
        # x where a <= b, else y
        @inline where_ordered(a::$V, b::$V, x::$V, y::$V) =
            Base.llvmcall($ordered, $V, Tuple{$V,$V,$V,$V}, a, b, x, y)
        # Whether any lane of a is not equal to that of b.
        @inline differ(a::$V, b::$V) = Base.llvmcall($unequal, Bool, Tuple{$V,$V}, a, b)
        @inline splat(::Type{$V}, x::$T) = Base.llvmcall($spread, $V, Tuple{$T}, x)
        # The bits moved up to where the exponent stands.
        @inline as_exponent(x::$V) = Base.llvmcall($power, $V, Tuple{$V}, x)
    end

    # Two registers whose lanes l and l + s (s a power of two) change places crosswise: what a round of a
    # transpose is made of.
    for step in (1, 2, 4, 8)
        step < N || continue
        low = llvm_lanes(l & step == 0 ? l : N + l - step for l in 0:N-1)
        high = llvm_lanes(l & step == 0 ? l + step : N + l for l in 0:N-1)
        shuffle(lanes) = "%r = shufflevector $vector %0, $vector %1, <$N x i32> $lanes\nret $vector %r"
        @eval @inline low_half(::Val{$step}, a::$V, b::$V) =
            Base.llvmcall($(shuffle(low)), $V, Tuple{$V,$V}, a, b)
        @eval @inline high_half(::Val{$step}, a::$V, b::$V) =
            Base.llvmcall($(shuffle(high)), $V, Tuple{$V,$V}, a, b)
    end
end

@inline zeros_of(::Type{V}) where {T,N,V<:Register{N,T}} = splat(V, zero(T))

# Any address will do: `unsafe_load` asks for no alignment.
@inline vload(::Type{V}, from::Ptr{T}) where {T,N,V<:Register{N,T}} = unsafe_load(Ptr{V}(from))
@inline vstore(to::Ptr{T}, x::V) where {T,N,V<:Register{N,T}} = unsafe_store!(Ptr{V}(to), x)

# The address `n` elements on.
@inline at(p::Ptr{T}, n::Int) where {T} = p + n * sizeof(T)

# Asks for a line of memory, into L2: L1 is too small to hold what is asked for so early. Any address will do.
@static if Sys.ARCH === :x86_64
    @inline prefetch(p::Ptr) = Base.llvmcall(
        "call void asm sideeffect \"prefetcht1 (\$0)\", \"r\"(i64 %0)\nret void", Cvoid, Tuple{UInt}, UInt(p)
    )
else
    @inline prefetch(p::Ptr) = nothing
end

"""
    lane_count() -> 4, 8 or 16

How many `Float32` a register of this processor takes. The environment's ROSETTA_SIMD_LANES says otherwise.
"""
function lane_count()
    forced = get(ENV, "ROSETTA_SIMD_LANES", "")
    isempty(forced) && return LANES[] == 0 ? (LANES[] = native_lanes()) : LANES[]
    good = forced in ("4", "8", "16")
    good || reject(:invalid_config, "simd", "ROSETTA_SIMD_LANES", "4, 8 or 16", repr(forced))
    return parse(Int, forced)
end

const LANES = Ref(0)

function native_lanes()
    Sys.ARCH === :x86_64 || return 4
    leaf = zeros(Int32, 4)  # eax, ebx, ecx, edx of the extended features
    ccall(:jl_cpuidex, Cvoid, (Ptr{Int32}, Int32, Int32), leaf, 7, 0)
    has(bit) = leaf[2] >> bit & 1 == 1
    return has(16) ? 16 : has(5) ? 8 : 4  # AVX-512F, AVX2
end

# By the lanes of Float32.
const REGISTER_OF = Dict{Any,Any}((N * sizeof(T) ÷ 4, T) => Register{N,T} for (N, T) in REGISTERS)
