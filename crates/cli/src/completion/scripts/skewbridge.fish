# Completion of skewbridge for fish. The program itself knows the candidates.
function __skewbridge_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct | string unescape)
    set -l program $words[1]
    command -q -- $program; or set program skewbridge
    set -l lines ($program __complete $words[2..-1] "$last" </dev/null 2>/dev/null)
    set -q lines[1]; or return
    set -l directive (string sub --start=2 -- $lines[-1])
    set -e lines[-1]
    if set -q lines[1]
        printf '%s\n' $lines
    else if test (math "bitand($directive, 4)") = 0
        __fish_complete_path (string replace -r -- '^--?[^=]*=' '' "$last")
    end
end
complete -c skewbridge -f -a '(__skewbridge_complete)'
