#include "common/job/unknown_key.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/job/did_you_mean.h"
#include "common/job/schema_keys.h"

namespace nsa {
namespace {

using google::protobuf::Descriptor;

// Usual names of other trainers for a key that is spelt quite differently here.
struct OtherName {
  std::string_view other;
  std::string_view key;
};
constexpr OtherName kOtherNames[] = {
    {"learning_rate", "lr"}, {"epochs", "steps"},       {"num_epochs", "steps"},
    {"max_epochs", "steps"}, {"hidden_size", "dim"},    {"context_length", "seq_len"},
    {"n_embd", "dim"},       {"block_size", "seq_len"}, {"gradient_clipping", "grad_clip"},
    {"devices", "gpus"},     {"num_gpus", "gpus"},      {"nproc_per_node", "gpus"},
    {"world_size", "gpus"},  {"layers", "n_layers"},    {"num_layers", "n_layers"},
    {"heads", "n_heads"},    {"num_heads", "n_heads"},  {"num_hidden_layers", "n_layers"},
};

std::string KeyOfOtherName(std::string_view name) {
  for (const OtherName& row : kOtherNames) {
    if (row.other == name) return std::string(row.key);
  }
  return "";
}

// "belongs to train; write it as train.lr"
std::string Belongs(const SchemaKey& key) {
  if (key.section.empty()) {
    return absl::StrFormat("belongs to the top level; write %s: without indentation",
                           key.field->name());
  }
  return absl::StrFormat("belongs to %s; write it as %s", key.section, key.Path());
}

}  // namespace

std::string UnknownKey(const Descriptor& root, const Descriptor& type, std::string_view section,
                       std::string_view key) {
  if (type.IsReservedName(std::string(key))) {
    return "unknown key; an earlier version had it; remove it, see CHANGELOG.md";
  }
  std::vector<std::string> here;
  for (int i = 0; i < type.field_count(); ++i) here.push_back(type.field(i)->name());
  const std::vector<SchemaKey> all = SchemaKeys(root);
  const std::string meant = KeyOfOtherName(key);
  if (std::ranges::find(here, meant) != here.end()) {
    return absl::StrFormat("unknown key; did you mean '%s'?", meant);
  }
  for (const SchemaKey& known : all) {
    if (known.field->name() == key && known.section != section) {
      return absl::StrCat("unknown key; it ", Belongs(known));
    }
  }
  const std::string near_here = meant.empty() ? Nearest(key, here) : "";
  if (!near_here.empty()) {
    return absl::StrFormat("unknown key; did you mean '%s'?", near_here);
  }
  std::vector<std::string> names;
  for (const SchemaKey& known : all) names.push_back(known.field->name());
  if (const std::string nearest = meant.empty() ? Nearest(key, names) : meant; !nearest.empty()) {
    for (const SchemaKey& known : all) {
      if (known.field->name() == nearest) {
        return absl::StrFormat("unknown key; did you mean '%s'? It %s", nearest, Belongs(known));
      }
    }
  }
  return absl::StrCat("unknown key; the keys here are ", absl::StrJoin(here, ", "));
}

}  // namespace nsa
