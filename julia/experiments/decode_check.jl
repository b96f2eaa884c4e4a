# Whether what was timed is right: a run's output at each length, held to the same layer in Float64 on the
# same text.
#
# Runs in Float32 feed their own last bits back to themselves, so that their texts may drift apart; but each
# way has to make of its own text what exact arithmetic makes of it, up to an error that is bounded here for
# the very weights and text. So two ways agree on one text within twice that.
#
# With u half the distance from 1 to the next number, a sum of n products comes out, in any order, within
# γ(n) = n u / (1 - n u) times the sum of their magnitudes (Higham, "Accuracy and Stability of Numerical
# Algorithms", 2002, section 3.1). Primes are computed values, d what they may be off by, and |a'| <= |a| +
# da:
#
#     projection   a = W x              da = γ(C) |W| |x|
#     score        s = q·k / sqrt(D)    ds = ((1 + γ(D + 2)) (|q| + dq)·(|k| + dk) - |q|·|k|) / sqrt(D)
#                                       (D terms, and the rounding of 1 / sqrt(D) and of its product with q)
#     exponent     s - max s            e = 2 max ds + 2 u max(|s| + ds)
#     weight       w                    w r, r = exp(2 e) (1 + γ(T + 9)) - 1: an exponential within 4 u over
#                                       a sum of T such ones
#     output       o = Σ w v            do = (1 + r) (1 + γ(T)) Σ w (|v| + dv) - Σ w |v|
#     projection   y = W o              dy = |W| do + γ(C) |W| (|o| + do)
#
# Letters: T tokens of the text, C width, H heads, D = C / H.

"""
A way does not make what the layer makes.
"""
struct WrongOutput <: Exception
    message::String
end

"""
    check_outputs(way, run, layer)

Throws `WrongOutput` where an output is farther from the exact one than it may be.
"""
function check_outputs(way::String, run::Run, layer)
    for (n, output) in run.outputs
        exact, bound = last_output(run.text[:, 1:n, 1], layer)
        off = abs.(vec(output) .- exact)
        good = all(off .<= bound)  # NaN is not
        good || throw(WrongOutput("$way: the output for $n tokens is off by $(maximum(off)), too much"))
    end
    return nothing
end

# What the layer makes of the last token of a text (C, T), in Float64, and dy: (C,) both.
function last_output(text::Matrix{Float32}, layer)
    u = eps(Float32) / 2
    gamma(n) = n * u / (1 - n * u)
    C, T = size(text)
    H = layer.num_heads
    D = C ÷ H
    x = Float64.(text)
    w_q, w_k, w_v, w_o = (Float64.(w) for w in (layer.w_q, layer.w_k, layer.w_v, layer.w_o))
    project(w, a) = (w' * a, gamma(C) .* (abs.(w)' * abs.(a)))
    (q, dq), (k, dk), (v, dv) = project(w_q, x[:, end:end]), project(w_k, x), project(w_v, x)  # (C, 1 or T)

    o, d_o = zeros(C), zeros(C)
    for h in 1:H
        head = (h-1)*D+1:h*D
        s = vec(q[head, :]' * k[head, :]) ./ sqrt(D)  # (T,)
        largest = vec((abs.(q[head, :]) .+ dq[head, :])' * (abs.(k[head, :]) .+ dk[head, :]))
        ds = ((1 + gamma(D + 2)) .* largest .- vec(abs.(q[head, :])' * abs.(k[head, :]))) ./ sqrt(D)
        e = 2 * maximum(ds) + 2 * u * maximum(abs.(s) .+ ds)
        r = exp(2 * e) * (1 + gamma(T + 9)) - 1
        w = exp.(s .- maximum(s))
        w ./= sum(w)
        o[head] = v[head, :] * w
        d_o[head] =
            (1 + r) * (1 + gamma(T)) .* ((abs.(v[head, :]) .+ dv[head, :]) * w) .- abs.(v[head, :]) * w
    end
    return w_o' * o, abs.(w_o)' * d_o .+ gamma(C) .* (abs.(w_o)' * (abs.(o) .+ d_o))
end
