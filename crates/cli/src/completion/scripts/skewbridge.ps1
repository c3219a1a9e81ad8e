# Completion of skewbridge for PowerShell. The program itself knows the candidates.
Register-ArgumentCompleter -Native -CommandName 'skewbridge' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    # Up to the cursor; with a space if a new word begins there. The words are passed to the program
    # as one line, because PowerShell before 7.3 loses empty arguments.
    $start = $commandAst.Extent.StartOffset
    $line = $commandAst.Extent.Text.PadRight($cursorPosition - $start).Substring(0, $cursorPosition - $start)
    & skewbridge __complete_line $line 2>$null | ForEach-Object {
        if ($_.StartsWith(':')) { return }
        $word, $description = $_.Split("`t", 2)
        if (-not $description) { $description = $word }
        [System.Management.Automation.CompletionResult]::new($word, $word, 'ParameterValue', $description)
    }
}
