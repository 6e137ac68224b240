# SPDX-License-Identifier: Apache-2.0
"""Caches for model.Model.forward: what each path's rows look like to later blocks ("far") and
to their own block ("near", BF16 rows), by the rule that a token attends to packed pages of all
earlier blocks and to BF16 rows of its own."""
import numpy as np
import torch

from . import record


def _apply(rows, function):
    """Runs a NumPy function on a tensor's rows."""
    return torch.from_numpy(np.ascontiguousarray(function(rows.numpy()))).to(rows.dtype)


class Packed:
    """C4R4 or C2R4. @constants: a list with a dict a layer, keys as in quantmla.safetensors
    without the layer's prefix, all optional (rope_scale is not read); @rotation: [d_c][d_c] or None.
    A layer's key is asked for before its content, which takes back what the key's codes did."""

    def __init__(self, form, constants, rotation=None):
        self.content_bits, self.rope_bits = record.FORMATS[form]
        self.constants, self.rotation = constants, rotation
        self.written = {}  # of the last text: (layer, path) to codes and scales of every token
        self.left = {}     # of the last text: layer to what its key's codes left

    def _path(self, layer, path, rows, bits):
        """Far and near rows in cache coordinates."""
        c = self.constants[layer]
        mean = c.get(path + "_mean")
        mean = np.zeros(rows.shape[1], rows.dtype) if mean is None else mean.astype(rows.dtype)
        centred = rows - mean
        cross, aims = c.get("cross_feedback"), None
        if path == "content" and cross is not None:
            aims = centred + self.left[layer] @ cross.astype(rows.dtype).T
        codes, scales = record.quantise(centred, bits, c.get(path + "_feedback"), c.get(path + "_weight"), aims,
                                        dense=path == "rope")
        self.written[layer, path] = codes, scales
        far = record.dequantise(codes, scales[:, None], bits)
        if path == "rope":
            self.left[layer] = centred - far
        return far + mean, record.bf16(centred) + mean

    def page(self, layer, block):
        """Bytes of the page that holds tokens 64 block … 64 block + 63 of the last text."""
        rows = slice(64 * block, 64 * block + 64)
        content, rope = (tuple(part[rows] for part in self.written[layer, path]) for path in ("content", "rope"))
        return record.pack_page(content, rope, self.content_bits, self.rope_bits)

    def _both(self, layer, path, rows, bits):
        far, near = self._path(layer, path, rows.numpy(), bits)
        return torch.from_numpy(far).to(rows.dtype), torch.from_numpy(near).to(rows.dtype)

    def content(self, layer, latent):
        scale = self.constants[layer].get("content_scale")
        scale = 1.0 if scale is None else torch.from_numpy(np.array(scale)).to(latent.dtype)
        if self.rotation is None:
            far, near = self._both(layer, "content", latent * scale, self.content_bits)
            return far / scale, near / scale
        rotation = torch.from_numpy(self.rotation).to(latent.dtype)
        far, near = self._both(layer, "content", latent @ rotation * scale, self.content_bits)
        return (far / scale) @ rotation.T, (near / scale) @ rotation.T

    def key(self, layer, key):
        return self._both(layer, "rope", key, self.rope_bits)


class Learned(Packed):
    """As Packed, of a model whose weights are not fused. @transforms: R S and T of each layer."""

    def __init__(self, form, constants, transforms):
        super().__init__(form, constants)
        self.transforms = [[torch.from_numpy(m).float() for m in pair] for pair in transforms]

    def content(self, layer, latent):
        forth = self.transforms[layer][0]
        back = torch.linalg.inv(forth)
        return [rows @ back for rows in super().content(layer, latent @ forth)]

    def key(self, layer, key):
        forth = self.transforms[layer][1]
        back = torch.linalg.inv(forth)
        return [rows @ back for rows in super().key(layer, key @ forth)]


class Paper:
    """The paper's record: asymmetric groups of 64, keys after rotation. @rotation: of u, or None
    for the latent with its norm weight, as a model without the paper's transform caches it."""

    def __init__(self, model, content_bits=4, rotation=None):
        self.model, self.bits, self.rotation = model, content_bits, rotation

    def content(self, layer, latent):
        if self.rotation is not None:
            rotation = torch.from_numpy(self.rotation).to(latent.dtype)
            z, back = latent @ rotation, lambda rows: rows @ rotation.T
        else:
            gamma = self.model.layer(layer, "self_attn.kv_a_layernorm.weight")
            z, back = latent * gamma, lambda rows: rows / gamma
        far = _apply(z, lambda rows: record.quantise_paper(rows, self.bits, "bf16"))
        return back(far), back(_apply(z, record.bf16))

    def key(self, layer, key):
        turned = self.model.rotate(key)
        far = _apply(turned, lambda rows: record.quantise_paper(rows, 4, "f32"))
        return self.model.rotate(far, back=True), self.model.rotate(_apply(turned, record.bf16), back=True)
