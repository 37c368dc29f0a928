#!/usr/bin/env python3
"""Makes the manual page and the completion for bash from what `baltoro help` and `--help=all` print.

    manual.py PROGRAM PAGE COMPLETION
"""
import re
import subprocess
import sys


def printed(program, *words):
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("|", "|\\:")  # a line may end after a |
    return "\\&" + text if text.startswith((".", "'")) else text


def subcommands(overview):
    """The rows of `baltoro help` that are there: name and what it is for."""
    rows = re.findall(r"^  (\w+) +(.+)$", overview, re.M)
    return [(name, text) for name, text in rows if "not available yet" not in text]


def commands(program, names):
    """Every command that has flags, with its `--help=all`."""
    out = []
    for name in names:
        if name in ("help", "version"):
            continue
        if name == "bench":
            for kind in re.findall(r"baltoro bench (\w+)", printed(program, "bench", "--help")):
                out.append((f"bench {kind}", printed(program, "bench", kind, "--help=all")))
        else:
            out.append((name, printed(program, name, "--help=all")))
    return out


def page(program, overview, helps):
    version = printed(program, "version").strip()
    lines = [f'.TH BALTORO 1 "" "{version}" "User Commands"', ".ad l", ".SH NAME", "baltoro, vllm \\- inference server for the Kimi K2 family of models",
             ".SH SYNOPSIS", ".B baltoro", "SUBCOMMAND [options]", ".SH SUBCOMMANDS"]
    for name, text in subcommands(overview):
        lines += [".TP", f".B {roff(name)}", roff(text)]
    for name, text in helps:
        lines.append(f'.SH "BALTORO {name.upper()}"')
        for line in text.splitlines():
            if line.startswith("usage: "):
                lines += [".nf", roff(line.removeprefix("usage: ")), ".fi"]
            elif line.startswith("      "):
                lines.append(roff(line.strip()))
            elif line.startswith("  "):
                lines += [".TP", f".B {roff(line.strip())}"]
            elif line.strip():
                lines.append(f'.SS "{roff(line.strip())}"')
    lines += [".SH FILES", ".TP", ".I /etc/default/baltoro", "What baltoro.service serves, and with which flags."]
    return "\n".join(lines) + "\n"


def completion(overview, helps):
    cases, values = [], {}
    for name, text in helps:
        flags = []
        for line in re.findall(r"^  (-.+)$", text, re.M):
            spelled = re.findall(r"(?:^|, )(--?[\w-]+)", line)
            flags += spelled
            if choices := re.search(r"\{([^}]+)\}", line):
                for flag in spelled:
                    values.setdefault(flag, choices[1].replace("|", " "))
        cases.append(f'    {name.replace(" ", ":")}) words="{" ".join(flags)}" ;;')
    benches = " ".join(name.split()[1] for name, _ in helps if name.startswith("bench "))
    names = " ".join(name for name, _ in subcommands(overview))
    choices = [f'    {flag}) COMPREPLY=($(compgen -W "{words}" -- "$word")); return ;;' for flag, words in sorted(values.items())]
    return "\n".join([
        "# Completion of baltoro's subcommands, flags and their values; made from its help.",
        "_baltoro() {", '  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} words=',
        "  COMPREPLY=()", '  if [ "$COMP_CWORD" = 1 ]; then', f'    COMPREPLY=($(compgen -W "{names}" -- "$word"))', "    return", "  fi",
        '  if [ "$command" = bench ]; then', '    if [ "$COMP_CWORD" = 2 ]; then', f'      COMPREPLY=($(compgen -W "{benches}" -- "$word"))',
        "      return", "    fi", '    command=bench:${COMP_WORDS[2]}', "  fi",
        '  case "$before" in', *choices, "  esac", '  case "$word" in -*) ;; *) return ;; esac', '  case "$command" in', *cases, "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))', "}", "complete -o bashdefault -o default -F _baltoro baltoro vllm"]) + "\n"


def main():
    program, page_path, completion_path = sys.argv[1:]
    overview = printed(program, "help")
    helps = commands(program, [name for name, _ in subcommands(overview)])
    with open(page_path, "w") as out:
        out.write(page(program, overview, helps))
    with open(completion_path, "w") as out:
        out.write(completion(overview, helps))


if __name__ == "__main__":
    main()
