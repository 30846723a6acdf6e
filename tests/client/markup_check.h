// Whether a text is well-formed SVG or HTML of the kind that nsactl writes.
#pragma once

#include <string>
#include <vector>

namespace nsa::client {

// What is wrong with the text: a tag that is not closed or closes another, a bare '<' or '&', an
// attribute without quotes; empty when nothing is. The tags meta and !DOCTYPE have no end.
inline std::string MarkupProblem(const std::string& text) {
  std::vector<std::string> open;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '&') {
      const size_t end = text.find(';', i);
      if (end == std::string::npos || end - i > 7) return "bare & at " + text.substr(i, 40);
    }
    if (text[i] != '<') continue;
    const size_t end = text.find('>', i);
    if (end == std::string::npos) return "no > after " + text.substr(i, 40);
    std::string tag = text.substr(i + 1, end - i - 1);
    i = end;
    if (tag.empty() || tag.find('<') != std::string::npos) return "bare < in <" + tag;
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) return "<" + tag + "> closes nothing";
      open.pop_back();
      continue;
    }
    bool quoted = false;
    for (size_t k = 0; k < tag.size(); ++k) {
      if (tag[k] == '"') quoted = !quoted;
      if (!quoted && tag[k] == '=' && (k + 1 == tag.size() || tag[k + 1] != '"')) {
        return "no quotes in <" + tag + ">";
      }
    }
    if (quoted) return "open quote in <" + tag + ">";
    const std::string name = tag.substr(0, tag.find_first_of(" /\n"));
    const bool ends = tag.back() == '/' || name == "meta" || name == "!DOCTYPE";
    if (!ends) open.push_back(name);
    // A style is not markup.
    if (name == "style" && !ends) i = text.find("</style>", i) - 1;
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

}  // namespace nsa::client
