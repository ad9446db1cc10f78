#!/usr/bin/env bash
# man_page.sh PROGRAM: the page of gdx(1) or gdxd(8) in roff on stdout, from what PROGRAM prints as help.
set -euo pipefail
program=$1
name=$(basename "$program")

# verbatim TEXT: as it is, without filling.
verbatim() {
  printf '.nf\n%s\n.fi\n' "$(sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\\&&/" <<<"$1")"
}
# title SECTION WHAT SYNOPSIS
title() {
  printf '.TH %s %s "" "%s"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n%s\n.SH DESCRIPTION\n' "${name^^}" "$1" "$version" "$name" \
    "$2" "$name" "$3"
}

version=$("$program" --version)
if [ "$name" = gdxd ]; then
  title 8 'daemon that owns RDMA HCAs, for GPU\-initiated RDMA' '[\fIOPTIONS\fR]'
  verbatim "$("$program" --help)"
  printf '.SH ENVIRONMENT\nEach option has a variable: GDXD_QUOTA_ENDPOINTS is \\-\\-quota\\-endpoints. A flag counts before its variable, and\n'
  printf 'that before the file.\n.SH FILES\n/etc/gdx/gdxd.toml, which \\-\\-print\\-config prints.\n'
  printf '.SH EXIT STATUS\n0: ended by a signal or drained. 1: a failure, with one line on stderr. 2: a configuration that is impossible.\n'
  printf '.SH SEE ALSO\n.BR gdx (1)\n'
  exit
fi
help=$("$program" help)
title 1 'GPU\-initiated RDMA' $'.I COMMAND\n[\\fIOPTIONS\\fR]'
verbatim "$help"
for command in $(sed -nE '/^Examples:/q; s/^  ([a-z]+) .*/\1/p' <<<"$help"); do
  text=$("$program" help "$command")
  printf '.SH "GDX %s"\n' "${command^^}"
  verbatim "$text"
done
printf '.SH EXIT STATUS\n0: all is well. 1: a failure, with one line on stderr. 2: a command line that is impossible. 124: the time of\n'
printf '\\-\\-timeout\\-s is up. 127: no such program. gdx run: that of the first rank to fail, or 128 and its signal.\n'
printf '.SH SEE ALSO\n.BR gdxd (8)\n'
