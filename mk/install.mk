# What goes where, for packagers: make install PREFIX=/usr DESTDIR=/tmp/stage

INCLUDEDIR ?= $(PREFIX)/include
LIBDIR ?= $(PREFIX)/lib
BINDIR ?= $(PREFIX)/bin
DATADIR ?= $(PREFIX)/share/epx
INSTALLED_NAMES = $(addprefix $(LIBDIR)/,libepx.a libepx.so libepx.so.$(SOVERSION) libepx_jax.so pkgconfig/epx.pc) \
	$(patsubst include/%,$(INCLUDEDIR)/%,$(wildcard include/epx/*.h)) $(PROGRAM_NAMES:%=$(BINDIR)/%) \
	$(MACHINES:bench/%=$(DATADIR)/%)
MACHINES := $(wildcard bench/machines/*.json)
PROGRAM_NAMES := $(patsubst %,epx-%,$(notdir $(MAINS:/main.c=)))

.PHONY: install uninstall
install: $(LIBS) $(JAXLIB) $(PROGRAMS) $(BUILD)/epx.pc ## copy headers, libraries, programs and epx.pc to PREFIX
	$(Q)install -d $(addprefix $(DESTDIR),$(INCLUDEDIR)/epx $(LIBDIR)/pkgconfig $(BINDIR) $(DATADIR)/machines)
	$(Q)install -m 644 include/epx/*.h $(DESTDIR)$(INCLUDEDIR)/epx/
	$(Q)install -m 644 $(STATIC) $(DESTDIR)$(LIBDIR)/
	$(Q)install -m 755 $(SHARED) $(DESTDIR)$(LIBDIR)/
	$(Q)ln -sf $(notdir $(SHARED)) $(DESTDIR)$(LIBDIR)/libepx.so
	$(if $(JAXLIB),$(Q)install -m 755 $(JAXLIB) $(DESTDIR)$(LIBDIR)/)
	$(Q)install -m 644 $(BUILD)/epx.pc $(DESTDIR)$(LIBDIR)/pkgconfig/
	$(Q)install -m 644 $(MACHINES) $(DESTDIR)$(DATADIR)/machines/
	$(if $(PROGRAMS),$(Q)install -m 755 $(PROGRAMS) $(DESTDIR)$(BINDIR)/)

uninstall: ## remove what install copied
	$(Q)rm -f $(addprefix $(DESTDIR),$(INSTALLED_NAMES))
	$(Q)rmdir $(DESTDIR)$(DATADIR)/machines $(DESTDIR)$(DATADIR) $(DESTDIR)$(INCLUDEDIR)/epx 2>/dev/null || true

# Written anew each time: it holds PREFIX, which belongs to the install and not to the build.
.PHONY: $(BUILD)/epx.pc
$(BUILD)/epx.pc:
	$(Q)printf '%s\n' 'includedir=$(INCLUDEDIR)' 'libdir=$(LIBDIR)' '' 'Name: epx' \
		'Description: expert-parallel exchange for mixture-of-experts layers' 'Version: $(VERSION)' \
		'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -lepx' 'Libs.private: $(strip -pthread $(LINK_LIBS))' > $@
