/* SPDX-License-Identifier: Apache-2.0 */
/* Written by key_vectors.py. */
static const char *const vector_zeros[] = {
	"e9203d82fc84a3e3f06cca52365a5a8f",
	"fcfc3bc6e878461766ce5c6d7f7a68f8",
};
static const char *const vector_counting[] = {
	"41b0c5df7e4c432eafaccb79ab516a96",
	"3faa0ce35fd86150e6532c4798627727",
	"a099bdcb22d00e9b4aa8c7b692efb892",
};
static const char *const vector_namespace[] = {
	"11ee040e3b9b5c103cf871eadb724874",
	"1f116035c4728942bf18351dd561a755",
	"58ce261954dd8b694b66e9acaadabbd7",
};
static const char *const vector_large_ids[] = {
	"cfa9b7e6f363d90d33c8781fc6a06a4b",
};
static const char *const vector_tail[] = {
	"b9b3ba9f6d19923ad01151afdeb42c59",
};
