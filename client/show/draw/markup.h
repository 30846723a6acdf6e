// Text inside of SVG and HTML.
#pragma once

#include <string>
#include <string_view>

namespace nsa::client {

// The text as it may stand between tags and in quoted attributes: cleaned (CleanText() of
// common/base/clean_text.h), and with entities for & < > " and '. Characters that XML does not have
// become visible, as "\uffff".
std::string Markup(std::string_view text);

}  // namespace nsa::client
