"""One step of gradient descent for a stack of CIFG models, with a hand-written backward pass.

Automatic differentiation stores and adds up a gradient as large as the weights for every product. Here each weight is
read and written once per step, for two reasons. The gradient of a product over all positions is itself one product, and
is subtracted from the weights as it is formed. And the softmax's gradient has low rank: with hidden outputs h,
probabilities p and one-hot targets y it is (p − y)ᵀ·h, which is never stored. What flows back into the network,
p·E − E[target], is attention over the vocabulary.

The inner functions (`softmax_step`, `subtract_rows`, `multiply`, `gates_forward`, `gates_backward`, `vector_gradients`,
and `room` and `prepare` for memory) exist twice: here in plain torch, as the reference, and as GPU kernels in
`neural/gpu/kernels.py`. Paper: §7.1.

Every gradient is linear in the positions' shares of the loss. The learning rate is multiplied into these shares, so
every gradient below is already a step: a gradient times the learning rate.

Positions are laid out [clients, length, rows], so that the positions of one moment t (one per row) are a slice. Weights
are changed in place. Symbols: x input, r output, c cell, h hidden, a = x·W, b = r·U, z the gates before their
nonlinearity, n the scaled layer norm of c; a leading d marks a gradient.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgram.neural.batching import NOTHING
from fedgram.neural.cell import Weights
from fedgram.neural.dropout import Dropout
from fedgram.neural.model import ModelShape, layer_weights
from fedgram.text.vocabulary import BOS

EPSILON = 1e-5  # of layer norms: torch's default


def supports(shape: ModelShape) -> bool:
    """Whether this module can train a model of this shape."""
    return shape.cell == "cifg" and shape.groups == 1


def descend(
    shape: ModelShape, weights: Weights, words: Tensor, targets: Tensor, rate: Tensor, inner: Any,
    dropout: Dropout | None = None,
) -> Tensor:  # fmt: skip
    """Take one step for every client; returns each client's summed loss before the step.

    The loss of a client is the mean over its targets; a client without targets keeps its weights.

    Args:
        shape: The architecture of the models.
        weights: The weights of all clients, which are changed.
        words: The inputs, [clients, length, rows].
        targets: The targets, of the same shape.
        rate: The learning rate, a tensor of one element where the weights are.
        inner: The module with the inner functions: this one, or `neural/gpu/kernels.py`.
        dropout: What to drop of the embeddings and of the softmax's input, if anything.
    """
    clients, length, rows = words.shape
    asked = targets != NOTHING
    share = asked * (rate / asked.sum(dim=(1, 2), keepdim=True).clamp(min=1))
    flat_words, flat_targets = words.flatten(1), targets.flatten(1)
    keep = (words != BOS).to(weights["embedding"].dtype)
    x = _rows_of(weights["embedding"], flat_words).view(clients, length, rows, -1)
    masks = [dropout.mask(place, length, rows, shape.embedding) for place in range(2)] if dropout else []
    if masks:
        x = x * masks[0]
    passes = []
    for k in range(shape.layers):
        passes.append(_forward(layer_weights(weights, k), x, keep, inner))
        x = x + passes[-1].r[:, 1:]
    if masks:
        x = x * masks[1]
    loss, dx = inner.softmax_step(
        weights["embedding"], weights["output_bias"], x.flatten(1, 2), flat_targets, share.flatten(1)
    )
    dx = dx.view(x.shape) * masks[1] if masks else dx.view(x.shape)
    for k in reversed(range(shape.layers)):
        dx = _backward(layer_weights(weights, k), passes[k], keep, dx, inner)
    if masks:
        dx = dx * masks[0]
    inner.subtract_rows(weights["embedding"], flat_words, dx.flatten(1, 2))
    summed: Tensor = (loss * asked.flatten(1)).sum(dim=1)
    return summed


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """What a layer's backward pass needs; r and c are those before each moment, and after the last."""

    x: Tensor
    a: Tensor
    b: Tensor
    h: Tensor
    r: Tensor
    c: Tensor
    recurrent: Tensor
    projection: Tensor


def _forward(layer: Weights, x: Tensor, keep: Tensor, inner: Any) -> _Pass:
    clients, length, rows, width = x.shape
    hidden = layer["cell_bias"].shape[-1]
    U, P = inner.prepare(layer["recurrent"].squeeze(1)), inner.prepare(layer["projection"])
    a, b = (inner.room(x, clients, length, rows, 3 * hidden) for _ in range(2))
    torch.bmm(x.flatten(1, 2), layer["input"].squeeze(1), out=a.flatten(1, 2))
    h, c = (inner.room(x, clients, length + extra, rows, hidden) for extra in (0, 1))
    r = inner.room(x, clients, length + 1, rows, width)
    b[:, 0], r[:, 0], c[:, 0] = 0.0, 0.0, 0.0
    for t in range(length):
        if t:
            inner.multiply(r[:, t], U, keep[:, t], b[:, t])
        inner.gates_forward(layer, a[:, t], b[:, t], keep[:, t], c[:, t], c[:, t + 1], h[:, t])
        inner.multiply(h[:, t], P, None, r[:, t + 1])
    return _Pass(x, a, b, h, r, c, U, P)


def _backward(layer: Weights, made: _Pass, keep: Tensor, dout: Tensor, inner: Any) -> Tensor:
    """Take the step of the layer's weights; returns the gradient of its input, given that of x + r."""
    (clients, length, rows, hidden), U, P = made.h.shape, made.recurrent.mT, made.projection.mT
    da, db, dz = (inner.room(dout, *made.a.shape) for _ in range(3))
    dr, dn = inner.room(dout, *dout.shape).copy_(dout), inner.room(dout, *made.h.shape)
    dh, dc = inner.room(dout, clients, rows, hidden), inner.room(dout, clients, rows, hidden).zero_()
    for t in reversed(range(length)):
        if t + 1 < length:
            inner.multiply(db[:, t + 1], U, keep[:, t + 1], dr[:, t], add=True)
        inner.multiply(dr[:, t], P, None, dh)
        moment = made.a[:, t], made.b[:, t], keep[:, t], made.c[:, t], made.c[:, t + 1]
        inner.gates_backward(layer, *moment, dh, dc, da[:, t], db[:, t], dz[:, t], dn[:, t])
    a, b, da, db, dz, dn, dr = (y.flatten(1, 2) for y in (made.a, made.b, da, db, dz, dn, dr))
    slopes = inner.vector_gradients(a, b, made.c[:, 1:].flatten(1, 2), dz, dn)
    W, r_in = layer["input"].squeeze(1), made.r[:, :-1] * keep.unsqueeze(-1)
    dx = torch.baddbmm(dout.flatten(1, 2), da, W.mT).view(dout.shape)
    for weight, left, right in (
        (W, made.x, da), (layer["recurrent"].squeeze(1), r_in, db), (layer["projection"], made.h, dr)
    ):  # fmt: skip
        weight.baddbmm_(left.flatten(1, 2).mT, right, alpha=-1)
    for name, slope in slopes.items():
        layer[name].sub_(slope)
    return dx


def _rows_of(embedding: Tensor, words: Tensor) -> Tensor:
    clients = torch.arange(len(embedding), device=words.device).unsqueeze(1)
    return embedding[clients, words]


def room(like: Tensor, *size: int) -> Tensor:
    """Uninitialised memory for the results of inner functions, in the layout that suits them."""
    return like.new_empty(size)


def prepare(weight: Tensor) -> Tensor:
    """A weight in the layout and precision that suit `multiply`."""
    return weight


def multiply(x: Tensor, weight: Tensor, scale: Tensor | None, out: Tensor, *, add: bool = False) -> None:
    """Write x·W of one moment to `out`, or add it; each row of x is multiplied by its scale."""
    if scale is not None:
        x = x * scale.unsqueeze(-1)
    torch.baddbmm(out, x, weight, beta=int(add), out=out)


def gates_forward(
    layer: Weights, a: Tensor, b: Tensor, keep: Tensor, c_before: Tensor, c_after: Tensor, h: Tensor
) -> None:
    """Write c and h of one moment; where `keep` is 0, a sentence begins, and the cell starts from zeros."""
    f, o, g, *_ = _gates(layer, a, b)
    torch.lerp(g, c_before * keep.unsqueeze(-1), f, out=c_after)  # f·c + (1 − f)·g
    n = torch.nn.functional.layer_norm(c_after, c_after.shape[-1:]) * layer["cell_scale"].unsqueeze(1)
    torch.mul(o, torch.tanh(n + layer["cell_bias"].unsqueeze(1)), out=h)


def gates_backward(
    layer: Weights, a: Tensor, b: Tensor, keep: Tensor, c_before: Tensor, c_after: Tensor, dh: Tensor, dc: Tensor,
    da: Tensor, db: Tensor, dz: Tensor, dn: Tensor,
) -> None:  # fmt: skip
    """Write da, db, dz and dn of one moment; `dc` is the gradient of the cell after it, and becomes that before it."""
    f, o, g, a_hat, a_rate, b_hat, b_rate = _gates(layer, a, b)
    c_hat, c_rate = _normed(c_after)
    th = torch.tanh(c_hat * layer["cell_scale"].unsqueeze(1) + layer["cell_bias"].unsqueeze(1))
    torch.mul(dh * o, 1.0 - th * th, out=dn)
    dc += _unnormed(dn * layer["cell_scale"].unsqueeze(1), c_hat, c_rate)
    df, do = dc * (c_before * keep.unsqueeze(-1) - g) * f * (1.0 - f), dh * th * o * (1.0 - o)
    torch.cat((df, do, dc * (1.0 - f) * (1.0 - g * g)), dim=-1, out=dz)
    dc *= f * keep.unsqueeze(-1)
    da.copy_(_unnormed((dz * layer["input_scale"].unsqueeze(1)).view(a_hat.shape), a_hat, a_rate).flatten(-2))
    db.copy_(_unnormed((dz * layer["recurrent_scale"].unsqueeze(1)).view(b_hat.shape), b_hat, b_rate).flatten(-2))


def vector_gradients(a: Tensor, b: Tensor, c: Tensor, dz: Tensor, dn: Tensor) -> Weights:
    """The gradients of biases and scales by name; all arguments are [clients, positions, …]."""
    a_hat, b_hat = (_normed(y.unflatten(-1, (3, -1)))[0].flatten(-2) for y in (a, b))
    return {
        "bias": dz.sum(dim=1), "input_scale": (dz * a_hat).sum(dim=1), "recurrent_scale": (dz * b_hat).sum(dim=1),
        "cell_scale": (dn * _normed(c)[0]).sum(dim=1), "cell_bias": dn.sum(dim=1),
    }  # fmt: skip


def softmax_step(embedding: Tensor, bias: Tensor, h: Tensor, targets: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Take the step of embedding and bias as the output layer; returns −log p of each target, and the gradient of h.

    h is [clients, positions, N_e]. `share` is each position's share of the loss times the learning rate, and 0 where
    there is no target.
    """
    p = torch.baddbmm(bias.unsqueeze(1), h, embedding.mT)
    torch.softmax(p, dim=-1, out=p)
    at = targets.clamp(min=0).unsqueeze(-1)
    loss = -p.gather(-1, at).squeeze(-1).clamp(min=1e-38).log()
    p *= share.unsqueeze(-1)
    p.scatter_add_(-1, at, -share.unsqueeze(-1))
    dh = torch.bmm(p, embedding)
    embedding.baddbmm_(p.mT, h, alpha=-1)
    bias.sub_(p.sum(dim=1))
    return loss, dh


def subtract_rows(embedding: Tensor, words: Tensor, dx: Tensor) -> None:
    """Take the step of the embedding as the input layer: subtract dx from the rows of the words that were read."""
    clients, size, width = embedding.shape
    rows = (words + size * torch.arange(clients, device=words.device).unsqueeze(1)).flatten()
    embedding.view(-1, width).index_add_(0, rows, dx.reshape(-1, width), alpha=-1)


def _gates(layer: Weights, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """f, o and g, and for both layer norms in them the normalised values and 1 / the standard deviation."""
    a_hat, a_rate = _normed(a.unflatten(-1, (3, -1)))
    b_hat, b_rate = _normed(b.unflatten(-1, (3, -1)))
    z = a_hat.flatten(-2) * layer["input_scale"].unsqueeze(1) + layer["bias"].unsqueeze(1)
    z = torch.addcmul(z, b_hat.flatten(-2), layer["recurrent_scale"].unsqueeze(1))
    f, o, g = z.chunk(3, dim=-1)
    return torch.sigmoid(f), torch.sigmoid(o), torch.tanh(g), a_hat, a_rate, b_hat, b_rate


def _normed(x: Tensor) -> tuple[Tensor, Tensor]:
    """The layer norm of the last dimension without scale and bias, and 1 / the standard deviation."""
    out, _, rate = torch.native_layer_norm(x, x.shape[-1:], None, None, EPSILON)
    return out, rate


def _unnormed(dy: Tensor, normed: Tensor, rate: Tensor) -> Tensor:
    """The gradient of a layer norm's input, given that of its output."""
    along = (dy * normed).mean(dim=-1, keepdim=True)
    return (dy - dy.mean(dim=-1, keepdim=True) - normed * along) * rate
