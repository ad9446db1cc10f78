#!/usr/bin/env bash
# man_page.sh GDX: gdx(1) in roff on stdout, from what GDX prints as help.
set -euo pipefail
gdx=$1

# verbatim TEXT: as it is, without filling.
verbatim() {
  printf '.nf\n%s\n.fi\n' "$(sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^[.']/\\\\\\&&/" <<<"$1")"
}

version=$("$gdx" --version)
help=$("$gdx" help)
printf '.TH GDX 1 "" "%s" "User Commands"\n.SH NAME\ngdx \\- GPU\\-initiated RDMA\n' "$version"
printf '.SH SYNOPSIS\n.B gdx\n.I COMMAND\n[\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n'
verbatim "$help"
for command in $(sed -nE '/^Examples:/q; s/^  ([a-z]+) .*/\1/p' <<<"$help"); do
  text=$("$gdx" help "$command")
  printf '.SH "GDX %s"\n' "${command^^}"
  verbatim "$text"
done
printf '.SH EXIT STATUS\n0: all is well. 1: a failure, with one line on stderr. 2: a command line that is impossible. 124: the time of\n'
printf '\\-\\-timeout\\-s is up. 127: no such program. gdx run: that of the first rank to fail, or 128 and its signal.\n'
