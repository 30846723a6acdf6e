#include "worker/train/data/tokenize/text/spaces.h"

#include <algorithm>
#include <utility>

namespace nsa::train {

std::string_view MarkSpaces(std::string_view text, SpacePrefix prefix, std::string* storage) {
  const bool own = text.starts_with(' ') || text.starts_with(kSpaceMark);
  const bool mark = prefix == SpacePrefix::kMark || (prefix == SpacePrefix::kMarkOrOwn && !own);
  const auto spaces = static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
  if (text.empty() || (!mark && spaces == 0)) return text;
  std::string marked;
  marked.reserve(text.size() + spaces * (kSpaceMark.size() - 1) + kSpaceMark.size());
  if (mark) marked += kSpaceMark;
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(' ', at), text.size());
    marked += text.substr(at, space - at);
    if (space < text.size()) marked += kSpaceMark;
    at = space + 1;
  }
  *storage = std::move(marked);
  return *storage;
}

std::string UnmarkSpaces(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size();) {
    const size_t mark = std::min(text.find(kSpaceMark, at), text.size());
    plain += text.substr(at, mark - at);
    if (mark < text.size()) plain += ' ';
    at = mark + kSpaceMark.size();
  }
  return plain;
}

}  // namespace nsa::train
