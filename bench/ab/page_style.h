/* The page's style sheet. SPDX-License-Identifier: Apache-2.0 */
#ifndef EPX_AB_PAGE_STYLE_H
#define EPX_AB_PAGE_STYLE_H

/* CSS; colours of arms are classes a0 .. a7. */
extern const char *const epx_ab_page_style;

#endif
