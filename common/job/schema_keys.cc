#include "common/job/schema_keys.h"

#include "absl/strings/str_cat.h"

namespace nsa {
namespace {

constexpr int kMostSections = 4;  // a.b.c.key

void CollectKeys(const google::protobuf::Descriptor& type, const std::string& section, int sections,
                 std::vector<SchemaKey>* keys) {
  for (int i = 0; i < type.field_count(); ++i) {
    const SchemaKey key = {section, type.field(i)};
    keys->push_back(key);
    if (key.IsSection() && sections > 1) {
      CollectKeys(*key.field->message_type(), key.Path(), sections - 1, keys);
    }
  }
}

}  // namespace

std::string SchemaKey::Path() const {
  return section.empty() ? field->name() : absl::StrCat(section, ".", field->name());
}

bool SchemaKey::IsSection() const {
  return field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE &&
         !field->is_repeated();
}

std::vector<SchemaKey> SchemaKeys(const google::protobuf::Descriptor& root) {
  std::vector<SchemaKey> keys;
  CollectKeys(root, "", kMostSections, &keys);
  return keys;
}

}  // namespace nsa
