# SPDX-License-Identifier: Apache-2.0
"""Python side of QuantMLA Cache: a small MLA model, its packed record and its constants.

Written apart from the C code and sharing nothing with it, so that each can check the other.
record.py, tensors.py and calibrate_io.py need NumPy only; model.py, caches.py and
calibrate.py need PyTorch.
"""
