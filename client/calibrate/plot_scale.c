/* SPDX-License-Identifier: Apache-2.0 */
#include "client/calibrate/plot_scale.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MARGIN 0.06 /* of the range, at either end */

void qmw_scale_fit(struct qmw_scale *scale, double low, double high, bool logarithmic)
{
	double a = logarithmic ? log10(low) : low, b = logarithmic ? log10(high) : high;
	double pad = MARGIN * (b - a);

	if (!(b - a > 1e-9 * fmax(fabs(a), fabs(b)))) /* a single value, or rounding apart */
		pad = logarithmic ? .5 : fmax(.5, .1 * fabs(a));
	scale->logarithmic = logarithmic;
	scale->low = logarithmic ? pow(10, a - pad) : a - pad;
	scale->high = logarithmic ? pow(10, b + pad) : b + pad;
}

double qmw_scale_pixel(const struct qmw_scale *scale, double value)
{
	double share;

	if (scale->logarithmic)
		share = log(value / scale->low) / log(scale->high / scale->low);
	else
		share = (value - scale->low) / (scale->high - scale->low);
	return scale->start + share * (scale->stop - scale->start);
}

static double nice_step(double range, unsigned wanted, bool whole)
{
	double raw = range / wanted, power = pow(10, floor(log10(raw)));
	double step = 10 * power;

	if (raw <= power)
		step = power;
	else if (raw <= 2 * power)
		step = 2 * power;
	else if (raw <= 5 * power)
		step = 5 * power;
	return whole && step < 1 ? 1 : step;
}

static size_t linear_ticks(const struct qmw_scale *scale, unsigned wanted, bool whole,
			   double ticks[QMW_SCALE_TICKS])
{
	double step = nice_step(scale->high - scale->low, wanted, whole);
	double first = ceil(scale->low / step - 1e-9);
	size_t count = 0;

	for (double i = first; i * step <= scale->high + 1e-9 * step && count < QMW_SCALE_TICKS;
	     i++)
		ticks[count++] = i == 0 ? 0 : i * step;
	return count;
}

/* Powers of ten; with 2 and 5 between them, or every second power, as there is room. */
static size_t log_ticks(const struct qmw_scale *scale, unsigned wanted,
			double ticks[QMW_SCALE_TICKS])
{
	static const double within[] = {1, 2, 5};
	double decades = log10(scale->high / scale->low);
	size_t parts = decades * 3 <= 2 * wanted ? 3 : 1, count = 0;
	int every = (int)fmax(1, ceil(decades / (2 * wanted)));

	for (int k = (int)floor(log10(scale->low)); k <= (int)ceil(log10(scale->high)); k++) {
		for (size_t i = 0; i < parts && k % every == 0; i++) {
			double tick = within[i] * pow(10, k);

			if (tick >= scale->low * (1 - 1e-12) && tick <= scale->high * (1 + 1e-12) &&
			    count < QMW_SCALE_TICKS)
				ticks[count++] = tick;
		}
	}
	return count;
}

size_t qmw_scale_ticks(const struct qmw_scale *scale, unsigned wanted, bool whole,
		       double ticks[QMW_SCALE_TICKS])
{
	return scale->logarithmic ? log_ticks(scale, wanted, ticks)
				  : linear_ticks(scale, wanted, whole, ticks);
}

static void append_superscript(int value, char text[32])
{
	static const char *const digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
	char plain[16];

	snprintf(plain, sizeof(plain), "%d", value);
	for (const char *c = plain; *c; c++)
		strncat(text, *c == '-' ? "⁻" : digits[*c - '0'], 31 - strlen(text));
}

void qmw_scale_label(double value, char text[32])
{
	int power = value == 0 ? 0 : (int)floor(log10(fabs(value)) + 1e-9);
	double factor = value / pow(10, power);

	if (power >= -4 && power <= 5) {
		snprintf(text, 32, "%.6g", value);
		return;
	}
	if (fabs(factor - 1) < 1e-6)
		snprintf(text, 32, "10");
	else
		snprintf(text, 32, "%.3g×10", factor);
	append_superscript(power, text);
}
