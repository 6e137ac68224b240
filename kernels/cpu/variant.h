/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The CPU kernels are compiled once for each instruction set that CMakeLists.txt
 * lists (QMK_VARIANT: base, avx2, avx512), each time under names of its own, and
 * the best that the processor runs is chosen at run time. Results of two variants
 * may differ in the last bits (fused multiply-add, order of sums); those of one
 * never do.
 *
 * Include this before any other header of kernels/cpu in the files that are so
 * compiled.
 */
#ifndef QMK_CPU_VARIANT_H
#define QMK_CPU_VARIANT_H

#define QMK_JOIN_(name, variant) name##_##variant
#define QMK_JOIN(name, variant)  QMK_JOIN_(name, variant)
#define QMK_NAMED(name)          QMK_JOIN(name, QMK_VARIANT)

#define qmk_cpu_attend                 QMK_NAMED(qmk_cpu_attend)
#define qmk_cpu_attend_accumulate      QMK_NAMED(qmk_cpu_attend_accumulate)
#define qmk_cpu_attend_score           QMK_NAMED(qmk_cpu_attend_score)
#define qmk_cpu_attend_softmax         QMK_NAMED(qmk_cpu_attend_softmax)
#define qmk_cpu_attend_workspace       QMK_NAMED(qmk_cpu_attend_workspace)
#define qmk_cpu_checksum               QMK_NAMED(qmk_cpu_checksum)
#define qmk_cpu_codes_pack             QMK_NAMED(qmk_cpu_codes_pack)
#define qmk_cpu_codes_unpack           QMK_NAMED(qmk_cpu_codes_unpack)
#define qmk_cpu_keys_begin             QMK_NAMED(qmk_cpu_keys_begin)
#define qmk_cpu_keys_init              QMK_NAMED(qmk_cpu_keys_init)
#define qmk_cpu_keys_load              QMK_NAMED(qmk_cpu_keys_load)
#define qmk_cpu_keys_pair              QMK_NAMED(qmk_cpu_keys_pair)
#define qmk_cpu_keys_scratch           QMK_NAMED(qmk_cpu_keys_scratch)
#define qmk_cpu_merge                  QMK_NAMED(qmk_cpu_merge)
#define qmk_cpu_pack                   QMK_NAMED(qmk_cpu_pack)
#define qmk_cpu_pack_workspace         QMK_NAMED(qmk_cpu_pack_workspace)
#define qmk_cpu_page_content           QMK_NAMED(qmk_cpu_page_content)
#define qmk_cpu_page_rope              QMK_NAMED(qmk_cpu_page_rope)
#define qmk_cpu_page_checksum          QMK_NAMED(qmk_cpu_page_checksum)
#define qmk_cpu_paper_quantise_content QMK_NAMED(qmk_cpu_paper_quantise_content)
#define qmk_cpu_paper_quantise_rope    QMK_NAMED(qmk_cpu_paper_quantise_rope)
#define qmk_cpu_quantise               QMK_NAMED(qmk_cpu_quantise)
#define qmk_cpu_quantise_errors        QMK_NAMED(qmk_cpu_quantise_errors)
#define qmk_cpu_quantise_offset        QMK_NAMED(qmk_cpu_quantise_offset)
#define qmk_cpu_slice                  QMK_NAMED(qmk_cpu_slice)
#define qmk_cpu_slice_bf16             QMK_NAMED(qmk_cpu_slice_bf16)
#define qmk_cpu_table                  QMK_NAMED(qmk_cpu_table)
#define qmk_cpu_unpack                 QMK_NAMED(qmk_cpu_unpack)
#define qmk_cpu_unslice                QMK_NAMED(qmk_cpu_unslice)

#endif /* QMK_CPU_VARIANT_H */
