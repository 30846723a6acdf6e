#include "common/job/unknown_key.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/job/did_you_mean.h"

namespace nsa {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

struct KnownKey {
  std::string section;  // "" at the top
  std::string name;
};

// Every key of `type` and of the sections within it.
void Collect(const Descriptor& type, const std::string& section, int levels,
             std::vector<KnownKey>* keys) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    keys->push_back({section, field.name()});
    const bool nested =
        field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field.is_repeated();
    if (nested && levels > 0) {
      Collect(*field.message_type(),
              section.empty() ? field.name() : absl::StrCat(section, ".", field.name()), levels - 1,
              keys);
    }
  }
}

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
    {"world_size", "gpus"},
};

std::string KeyOfOtherName(std::string_view name) {
  for (const OtherName& row : kOtherNames) {
    if (row.other == name) return std::string(row.key);
  }
  return "";
}

// "belongs to train; write it as train.lr"
std::string Belongs(const KnownKey& key) {
  if (key.section.empty()) {
    return absl::StrFormat("belongs to the top level; write %s: without indentation", key.name);
  }
  return absl::StrFormat("belongs to %s; write it as %s.%s", key.section, key.section, key.name);
}

}  // namespace

std::string UnknownKey(const Descriptor& root, const Descriptor& type, std::string_view section,
                       std::string_view key) {
  std::vector<std::string> here;
  for (int i = 0; i < type.field_count(); ++i) here.push_back(type.field(i)->name());
  std::vector<KnownKey> all;
  Collect(root, "", 3, &all);

  for (const KnownKey& known : all) {
    if (known.name == key && known.section != section) {
      return absl::StrCat("unknown key; it ", Belongs(known));
    }
  }
  const std::string meant = KeyOfOtherName(key);
  const std::string near_here = meant.empty() ? Nearest(key, here) : meant;
  if (std::ranges::find(here, near_here) != here.end()) {
    return absl::StrFormat("unknown key; did you mean '%s'?", near_here);
  }
  std::vector<std::string> names;
  for (const KnownKey& known : all) names.push_back(known.name);
  if (const std::string nearest = meant.empty() ? Nearest(key, names) : meant; !nearest.empty()) {
    for (const KnownKey& known : all) {
      if (known.name == nearest) {
        return absl::StrFormat("unknown key; did you mean '%s'? It %s", nearest, Belongs(known));
      }
    }
  }
  return absl::StrCat("unknown key; the keys here are ", absl::StrJoin(here, ", "));
}

}  // namespace nsa
