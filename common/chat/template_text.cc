#include "common/chat/template_text.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_replace.h"

namespace nsa {
namespace {

bool IsSpace(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

// A text of Jinja, `rest` beginning with its quotation mark, in single quotes. Removes it.
std::string TakeText(std::string_view* rest) {
  const char quote = rest->front();
  std::string text = "'";
  size_t at = 1;
  for (; at < rest->size() && (*rest)[at] != quote; ++at) {
    const char c = (*rest)[at];
    if (c == '\\' && at + 1 < rest->size()) {
      const char escaped = (*rest)[++at];
      if (escaped == '"') {
        text += escaped;
      } else {
        text += {c, escaped};
      }
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\'') {
      text += "\\'";
    } else {
      text += c;
    }
  }
  rest->remove_prefix(std::min(at + 1, rest->size()));
  return text + "'";
}

// The inside of a tag.
std::string CanonicalTag(std::string_view inside) {
  if (inside.starts_with('-')) inside.remove_prefix(1);
  if (inside.ends_with('-')) inside.remove_suffix(1);
  std::string tag;
  while (!inside.empty()) {
    if (inside.front() == '\'' || inside.front() == '"') {
      tag += TakeText(&inside);
      continue;
    }
    if (!IsSpace(inside.front())) tag += inside.front();
    inside.remove_prefix(1);
  }
  return absl::StrReplaceAll(
      tag, {{".content", "['content']"}, {".role", "['role']"}, {".strip()", "|trim"}});
}

// Where the tag that `text` begins with ends, behind its texts.
size_t EndOfTag(std::string_view text, std::string_view end) {
  char quote = '\0';
  for (size_t at = 2; at < text.size(); ++at) {
    const char c = text[at];
    if (quote != '\0') {
      if (c == '\\') {
        ++at;
      } else if (c == quote) {
        quote = '\0';
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
    } else if (text.substr(at, 2) == end) {
      return at;
    }
  }
  return text.size();
}

std::string Unescaped(std::string_view text) {
  std::string plain;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\\' || at + 1 == text.size()) {
      plain += text[at];
      continue;
    }
    const char c = text[++at];
    plain += c == 'n' ? '\n' : c == 't' ? '\t' : c;
  }
  return plain;
}

// The first `end` of a text before the quotation mark that closes it; npos if there is none.
size_t FindWithin(std::string_view text, std::string_view end) {
  for (size_t at = 0; at < text.size() && text[at] != '\''; ++at) {
    if (text.substr(at, end.size()) == end) return at;
    if (text[at] == '\\') ++at;
  }
  return std::string_view::npos;
}

}  // namespace

std::string CanonicalTemplate(std::string_view text) {
  std::string canonical;
  while (!text.empty()) {
    const std::string_view start = text.substr(0, 2);
    if (start == "{#") {
      const size_t end = text.find("#}");
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 2);
    } else if (start == "{{" || start == "{%") {
      const std::string_view close = start == "{{" ? "}}" : "%}";
      const size_t end = EndOfTag(text, close);
      canonical += start;
      canonical += CanonicalTag(text.substr(2, end - 2));
      canonical += close;
      text.remove_prefix(std::min(end + 2, text.size()));
    } else {
      canonical += text.front();
      text.remove_prefix(1);
    }
  }
  return canonical;
}

std::optional<std::string> TextBetween(std::string_view canonical, std::string_view begin,
                                       std::string_view end) {
  const std::string opened = "'" + std::string(begin);
  for (size_t at = canonical.find(opened); at != std::string_view::npos;
       at = canonical.find(opened, at + 1)) {
    const std::string_view rest = canonical.substr(at + opened.size());
    const size_t found = FindWithin(rest, end);
    if (found != std::string_view::npos) return Unescaped(rest.substr(0, found));
  }
  return std::nullopt;
}

}  // namespace nsa
