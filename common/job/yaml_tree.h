// Parses YAML text into a tree whose nodes have line and column. Stricter than yaml-cpp: one
// document, no anchors, aliases or tags, at most 1 MiB, 32 levels and 100,000 values, valid UTF-8
// without control characters.
//
// The tree is built from parser events. This way an alias is refused before it is expanded, and
// deep nesting before anything recurses.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/job/load.h"

namespace nsa {

struct YamlEntry;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  bool quoted = false;             // a scalar in quotes or in block style, so it is text
  std::string scalar;              // kScalar
  std::vector<YamlNode> items;     // kSequence
  std::vector<YamlEntry> entries;  // kMap, as written; duplicates are kept
  SourcePlace place;
};

struct YamlEntry {
  YamlNode key;
  YamlNode value;
};

inline constexpr size_t kMaxYamlBytes = size_t{1} << 20;
inline constexpr size_t kMaxYamlDepth = 32;
inline constexpr size_t kMaxYamlValues = 100'000;

// Parses `text`. Mistakes are appended to `errors`; the tree may then be incomplete. The tree of an
// empty document is a null node.
YamlNode ParseYaml(std::string_view text, std::vector<LoadError>* errors);

}  // namespace nsa
