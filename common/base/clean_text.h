// Makes text from outside safe to show. Job files, events, file names and messages of other
// programs may contain escape sequences, which would steer the reader's terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace nsa {

// The text with everything replaced that a terminal obeys or that hides what is written: control
// characters but line feed and tab, also those of C1, marks that reverse the direction of writing,
// and bytes that are not UTF-8. Each becomes visible, as "\x1b" or "\u202e". A carriage return ends
// a line, also together with a line feed: it becomes one line feed. Text without any of these is
// returned as it is.
std::string CleanText(std::string_view text);

// The same on one line: line feeds, carriage returns and tabs are replaced by "\n", "\r" and "\t".
std::string CleanLine(std::string_view text);

// The text, or its first `most` bytes without half of a character. Of text that is not UTF-8 it may
// be up to three bytes less.
std::string_view Shorten(std::string_view text, size_t most);

// The same, with "…" where it was cut: up to three bytes more.
std::string CutText(std::string_view text, size_t most);

// JSON whose texts contain such characters, with each as an escape of JSON ("\u009b"): the same
// document. The input is JSON as nlohmann::json writes it.
std::string CleanJson(std::string_view json);

// The same with each made visible, as CleanText() does: JSON of texts that are only shown.
std::string ShownJson(std::string_view json);

}  // namespace nsa
