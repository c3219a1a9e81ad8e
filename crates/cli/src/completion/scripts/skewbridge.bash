# Completion of skewbridge for bash. The program itself knows the candidates.
_skewbridge() {
    local program=${COMP_WORDS[0]/#\~/$HOME} line
    type -P "$program" >/dev/null || program=skewbridge
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) compopt -o default 2>/dev/null ;;
            :nospace) compopt -o nospace 2>/dev/null ;;
            *) COMPREPLY+=("$line") ;;
        esac
    done < <("$program" __complete_bash "$COMP_WORDBREAKS" "${COMP_LINE:0:COMP_POINT}" \
        </dev/null 2>/dev/null)
}
complete -F _skewbridge skewbridge
