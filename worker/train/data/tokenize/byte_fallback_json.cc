#include "worker/train/data/tokenize/byte_fallback_json.h"

#include "common/base/status.h"
#include "worker/train/data/tokenize/text/spaces.h"
#include "worker/train/data/tokenize/vocabulary.h"

namespace nsa::train {
namespace {

using Json = nlohmann::json;

bool Is(const Json& part, const char* type) { return PartOf(part, "type") == type; }

// Whether a part replaces one text by another.
bool Replaces(const Json& part, std::string_view from, std::string_view to) {
  return Is(part, "Replace") && PartOf(PartOf(part, "pattern"), "String") == from &&
         PartOf(part, "content") == to;
}

class ByteFallbackReader {
 public:
  ByteFallbackReader(const std::filesystem::path& path, BpeFiles* files)
      : path_(path), files_(*files) {}

  // Prepend stands beside Replace, before or behind it.
  absl::Status ReadNormalizer(const Json& normalizer) {
    bool replaces = false;
    bool prepends = false;
    for (const Json& part : PartsOf(normalizer, "normalizers")) {
      const bool prepend = Is(part, "Prepend") && PartOf(part, "prepend") == kSpaceMark;
      const bool replace = Replaces(part, " ", kSpaceMark);
      if (Is(part, "NFC")) {
        files_.nfc = true;
      } else if (!(prepend && !prepends) && !replace) {
        return Unsupported(path_, "normalizer", part,
                           "NFC, Replace of ' ' by '\u2581', Prepend of '\u2581' once");
      }
      prepends |= prepend;
      replaces |= replace;
    }
    if (prepends && !replaces) {
      return Unsupported(path_, "normalizer", normalizer, "Prepend beside Replace of ' '");
    }
    if (replaces) files_.normal_spaces = prepends ? SpaceMarks::kEach : SpaceMarks::kMarks;
    return absl::OkStatus();
  }

  absl::Status ReadPreTokenizer(const Json& part) {
    if (part.is_null()) return absl::OkStatus();
    if (Is(part, "Metaspace")) return ReadMetaspace(part);
    const bool at_spaces = Is(part, "Split") && PartOf(PartOf(part, "pattern"), "String") == " " &&
                           IsOff(PartOf(part, "invert"));
    if (at_spaces && files_.normal_spaces != SpaceMarks::kNone) return absl::OkStatus();
    return Unsupported(path_, "pre_tokenizer", part,
                       "none, Metaspace, or Split at ' ' behind a normalizer that replaces it");
  }

  absl::Status CheckDecoder(const Json& decoder) {
    bool unmarks = false;
    bool bytes = false;
    for (const Json& part : PartsOf(decoder, "decoders")) {
      const bool unmark = Replaces(part, kSpaceMark, " ") ||
                          (Is(part, "Metaspace") && PartOf(part, "replacement") == kSpaceMark);
      const bool strip = Is(part, "Strip") && PartOf(part, "content") == " ";
      if (!unmark && !strip && !Is(part, "ByteFallback") && !Is(part, "Fuse")) {
        return Unsupported(path_, "decoder", part,
                           "Replace of '\u2581' by ' ', Metaspace, ByteFallback, Fuse or Strip");
      }
      unmarks |= unmark;
      bytes |= Is(part, "ByteFallback");
    }
    if (unmarks && bytes) return absl::OkStatus();
    return Unsupported(path_, "decoder", decoder,
                       "a Sequence with ByteFallback, and Replace of '\u2581' or Metaspace");
  }

 private:
  absl::Status ReadMetaspace(const Json& part) {
    const Json& scheme = PartOf(part, "prepend_scheme");
    const Json& own = PartOf(part, "add_prefix_space");
    const Json& split = PartOf(part, "split");
    const bool known =
        scheme.is_null() || scheme == "always" || scheme == "first" || scheme == "never";
    if (PartOf(part, "replacement") != kSpaceMark || !known ||
        (own == false && scheme != "never") || !(split.is_null() || split.is_boolean())) {
      return Unsupported(path_, "pre_tokenizer", part,
                         "Metaspace with replacement '\u2581' and prepend_scheme always, first or "
                         "never, and add_prefix_space: false only with never");
    }
    files_.spaces = scheme == "never"   ? SpaceMarks::kMarks
                    : scheme == "first" ? SpaceMarks::kFirst
                                        : SpaceMarks::kEachOwn;
    files_.split_before_marks = split != false;
    return absl::OkStatus();
  }

  const std::filesystem::path& path_;
  BpeFiles& files_;
};

}  // namespace

Json PartsOf(const Json& part, const char* name) {
  if (part.is_null()) return Json::array();
  const Json& parts = PartOf(part, name);
  return Is(part, "Sequence") && parts.is_array() ? parts : Json::array({part});
}

absl::Status ReadByteFallback(const std::filesystem::path& path, const Json& tokenizer,
                              BpeFiles* files) {
  ByteFallbackReader reader(path, files);
  NSA_RETURN_IF_ERROR(reader.ReadNormalizer(PartOf(tokenizer, "normalizer")));
  NSA_RETURN_IF_ERROR(reader.ReadPreTokenizer(PartOf(tokenizer, "pre_tokenizer")));
  return reader.CheckDecoder(PartOf(tokenizer, "decoder"));
}

std::string BeginOfTexts(const Json& tokenizer) {
  for (const Json& part : PartsOf(PartOf(tokenizer, "post_processor"), "processors")) {
    const Json& single = PartOf(part, "single");
    if (!Is(part, "TemplateProcessing") || !single.is_array() || single.empty()) continue;
    const Json& token = PartOf(PartOf(single[0], "SpecialToken"), "id");
    if (token.is_string()) return token.get<std::string>();
  }
  return "";
}

}  // namespace nsa::train
