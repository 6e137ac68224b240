# SPDX-License-Identifier: Apache-2.0
"""quantmla.json and quantmla.safetensors, as they stand beside a checkpoint."""
import json
import os

from . import record, tensors


def write(directory, checkpoint, recipe, rotation_name, layers, figures, created_by):
    """Writes quantmla.json and quantmla.safetensors."""
    arrays = {f"layers.{i}.{name}": array for i, layer in enumerate(layers) for name, array in layer.items()}
    tensors.write_file(os.path.join(directory, "quantmla.safetensors"), arrays)
    description = {"version": 1, "recipe": recipe, "content_rotation": rotation_name,
                   "model_sha256": tensors.checkpoint_digest(checkpoint), "created_by": created_by, "layers": figures}
    with open(os.path.join(directory, "quantmla.json"), "w", encoding="utf-8") as file:
        json.dump(description, file, indent=2)
        file.write("\n")


def read(directory):
    """(description, [arrays of a layer], rotation or None) as a runtime would use them."""
    with open(os.path.join(directory, "quantmla.json"), encoding="utf-8") as file:
        description = json.load(file)
    arrays = tensors.read_file(os.path.join(directory, "quantmla.safetensors"))
    layers = [{} for _ in range(1 + max(int(name.split(".")[1]) for name in arrays))]
    for name, array in arrays.items():
        _, i, key = name.split(".")
        layers[int(i)][key] = array
    rotation = None
    if description["content_rotation"] == "hadamard":
        rotation = record.hadamard(len(layers[0]["content_mean"]))
    return description, layers, rotation
