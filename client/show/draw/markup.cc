#include "client/show/draw/markup.h"

#include "absl/strings/str_replace.h"
#include "common/base/clean_text.h"

namespace nsa::client {

std::string Markup(std::string_view text) {
  return absl::StrReplaceAll(CleanText(text), {{"&", "&amp;"},
                                               {"<", "&lt;"},
                                               {">", "&gt;"},
                                               {"\"", "&quot;"},
                                               {"'", "&#39;"},
                                               {"\xEF\xBF\xBE", "\\ufffe"},
                                               {"\xEF\xBF\xBF", "\\uffff"}});
}

}  // namespace nsa::client
