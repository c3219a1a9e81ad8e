#compdef skewbridge
# Completion of skewbridge for zsh. The program itself knows the candidates.
_skewbridge() {
    local program=${${(Q)words[1]}/#\~/$HOME} line word directive
    local -a lines closed open
    (( $+commands[$program] )) || [[ $program == */* ]] || program=skewbridge
    lines=("${(@f)$("$program" __complete "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" \
        </dev/null 2>/dev/null)}")
    directive=${lines[-1]#:}
    lines[-1]=()
    for line in $lines; do
        word=${${line%%$'\t'*}//:/\\:}
        [[ $line == *$'\t'* ]] && word+=":${line#*$'\t'}"
        # What ends with one of these is not complete: no space follows.
        if [[ ${line%%$'\t'*} == *[/:=] ]]; then
            open+=("$word")
        else
            closed+=("$word")
        fi
    done
    if (( $#closed + $#open == 0 )); then
        if [[ $directive == <-> ]] && (( ! (directive & 4) )); then
            compset -P '*='
            _files
        fi
        return
    fi
    (( $#closed )) && _describe candidates closed
    (( $#open )) && _describe candidates open -S ''
    return 0
}
if [[ $funcstack[1] == _skewbridge ]]; then
    _skewbridge
else
    compdef _skewbridge skewbridge
fi
