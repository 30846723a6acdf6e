// A chat_template in one way of writing, so that the parts of known templates can be looked for.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace nsa {

// The template without comments and without what may be written either way. Within {{ }} and {% %}:
// no white space outside of texts and none around '-'; texts in single quotes, with line feeds as
// \n; members as message['content']; .strip() as |trim. Text outside of these stays as it is.
//
//   {{- "[INST] " + message.content | trim }}   becomes   {{'[INST] '+message['content']|trim}}
std::string CanonicalTemplate(std::string_view text);

// What is between `begin` and `end` within a single text of a canonical template, with its escapes
// replaced: the first such place. Nothing if there is none.
std::optional<std::string> TextBetween(std::string_view canonical, std::string_view begin,
                                       std::string_view end);

}  // namespace nsa
