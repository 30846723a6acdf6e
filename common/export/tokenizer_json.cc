#include "common/export/tokenizer_json.h"

#include <array>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/characters/byte_characters.h"
#include "common/base/characters/utf8.h"
#include "common/base/clean_text.h"
#include "common/base/job_file.h"
#include "common/base/json_shape.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/chat/chat_template.h"
#include "common/job/data/data_files.h"
#include "common/job/data/tokenizer_files.h"
#include "common/job/data_source.h"
#include "common/job/text_check.h"
#include "nlohmann/json.hpp"

namespace nsa {
namespace {

using UnorderedJson = nlohmann::json;  // an ordered_json of 50,000 keys takes quadratic time

constexpr char kByteSeparator[] = "<|separator|>";

// tokenizer.json of a byte-level BPE. `split`: text is first split into words, as GPT-2 does.
std::string TokenizerJson(const UnorderedJson& vocab, const std::vector<std::string>& merges,
                          const std::string& special, int32_t id, bool split) {
  const UnorderedJson byte_level = {{"type", "ByteLevel"},
                                    {"add_prefix_space", false},
                                    {"trim_offsets", true},
                                    {"use_regex", split}};
  const UnorderedJson document = {{"version", "1.0"},
                                  {"truncation", nullptr},
                                  {"padding", nullptr},
                                  {"added_tokens",
                                   {{{"id", id},
                                     {"content", special},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false},
                                     {"normalized", false},
                                     {"special", true}}}},
                                  {"normalizer", nullptr},
                                  {"pre_tokenizer", byte_level},
                                  {"post_processor", nullptr},
                                  {"decoder", byte_level},
                                  {"model",
                                   {{"type", "BPE"},
                                    {"dropout", nullptr},
                                    {"unk_token", nullptr},
                                    {"continuing_subword_prefix", ""},
                                    {"end_of_word_suffix", ""},
                                    {"fuse_unk", false},
                                    {"vocab", vocab},
                                    {"merges", merges}}}};
  return document.dump() + "\n";
}

// The tokens of a chat template stay those that its model was published with.
std::string TokenizerConfig(const v1::JobSpec& spec, const ChatEnds& ends,
                            const ChatTemplate& chat = {}) {
  const bool own = !chat.text.empty();
  const std::string& bos = own && !chat.ends.bos.empty() ? chat.ends.bos : ends.bos;
  const std::string& eos = own && !chat.ends.eos.empty() ? chat.ends.eos : ends.eos;
  UnorderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                          {"bos_token", bos},
                          {"eos_token", eos},
                          {"pad_token", ends.eos},
                          {"padding_side", "left"},
                          {"model_input_names", {"input_ids", "attention_mask"}},
                          {"clean_up_tokenization_spaces", false},
                          {"model_max_length", spec.train().seq_len()}};
  if (own) config["chat_template"] = chat.text;
  return config.dump(2, ' ', false, UnorderedJson::error_handler_t::replace) + "\n";
}

ExportedTokenizer Bytes(const v1::JobSpec& spec) {
  const std::array<std::string, 256> characters = BytesAsCharacters();
  UnorderedJson vocab = {{kByteSeparator, 0}};
  for (int byte = 1; byte < 256; ++byte) vocab[characters[byte]] = byte;
  ExportedTokenizer tokenizer{.ids = {0, 0}};
  tokenizer.files["tokenizer.json"] = TokenizerJson(vocab, {}, kByteSeparator, 0, false);
  tokenizer.files["tokenizer_config.json"] =
      TokenizerConfig(spec, {kByteSeparator, kByteSeparator});
  return tokenizer;
}

absl::StatusOr<std::string> ReadWhole(const std::filesystem::path& path) {
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (!error && bytes > limits::kVocabularyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": ", bytes, " bytes (at most ",
                                                   limits::kVocabularyBytes,
                                                   "); take the published file"));
  }
  const absl::StatusOr<std::string> text = ReadJobFile(path, limits::kVocabularyBytes);
  // Python's json and Hugging Face's tokenizers refuse a byte order mark.
  if (!error && text.ok()) return std::string(WithoutByteOrderMark(*text));
  return absl::NotFoundError(absl::StrCat(
      path.string(),
      ": cannot be read (must be a file of the job's tokenizer); name it with --tokenizer"));
}

// The vocabulary: token to id. InvalidArgument when it is not one.
absl::StatusOr<UnorderedJson> VocabularyOf(const std::filesystem::path& path,
                                           const std::string& text) {
  UnorderedJson vocab;
  if (IsShallow(text)) vocab = UnorderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!vocab.is_object() || vocab.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": not a JSON object of tokens; take the published file"));
  }
  std::vector<bool> taken(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    const uint64_t place = id.is_number_unsigned() ? id.get<uint64_t>() : taken.size();
    if (place >= taken.size() || taken[place]) {
      return absl::InvalidArgumentError(absl::StrCat(
          path.string(), ": token '", token, "': ", CutText(id.dump(), 40), " (from 0 to ",
          taken.size() - 1, ", each id once); take the published file"));
    }
    taken[place] = true;
  }
  return vocab;
}

absl::StatusOr<ExportedTokenizer> Gpt2(const v1::JobSpec& spec,
                                       const std::filesystem::path& folder) {
  ExportedTokenizer tokenizer;
  NSA_ASSIGN_OR_RETURN(tokenizer.files["vocab.json"], ReadWhole(folder / "vocab.json"));
  NSA_ASSIGN_OR_RETURN(tokenizer.files["merges.txt"], ReadWhole(folder / "merges.txt"));
  NSA_ASSIGN_OR_RETURN(const UnorderedJson vocab,
                       VocabularyOf(folder / "vocab.json", tokenizer.files["vocab.json"]));
  if (!vocab.contains(kEndOfText)) {
    return absl::InvalidArgumentError(absl::StrCat((folder / "vocab.json").string(), ": no token ",
                                                   kEndOfText, "; take the published file"));
  }
  if (!IsUtf8(tokenizer.files["merges.txt"])) {
    return absl::InvalidArgumentError(
        absl::StrCat((folder / "merges.txt").string(), ": not UTF-8; take the published file"));
  }
  std::vector<std::string> merges;
  for (const absl::string_view line : absl::StrSplit(tokenizer.files["merges.txt"], '\n')) {
    const absl::string_view merge = absl::StripSuffix(line, "\r");
    if (!merge.empty() && !(merges.empty() && absl::StartsWith(merge, "#version"))) {
      merges.emplace_back(merge);
    }
  }
  const auto separator = vocab[kEndOfText].get<int32_t>();
  tokenizer.ids = {separator, separator};
  tokenizer.files["tokenizer.json"] = TokenizerJson(vocab, merges, kEndOfText, separator, true);
  tokenizer.files["tokenizer_config.json"] = TokenizerConfig(spec, {kEndOfText, kEndOfText});
  return tokenizer;
}

// A tokenizer.json of the job's own, byte for byte but for a byte order mark.
absl::StatusOr<ExportedTokenizer> AsItIs(const v1::JobSpec& spec,
                                         const std::filesystem::path& file) {
  ExportedTokenizer tokenizer;
  NSA_ASSIGN_OR_RETURN(tokenizer.files["tokenizer.json"], ReadWhole(file));
  NSA_ASSIGN_OR_RETURN(const TokenizerFacts facts, ReadTokenizerFacts(file));
  if (facts.separator_id < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(file.string(), ": no token ", SeparatorWords(),
                     "; take the file that the job was trained with"));
  }
  NSA_ASSIGN_OR_RETURN(const ChatTemplate chat, ReadChatTemplate(file.parent_path()));
  tokenizer.ids = {facts.separator_id, facts.end_id};
  const auto turn_end = facts.special.find(chat.ends.eos);
  if (!chat.text.empty() && turn_end != facts.special.end() && turn_end->second != facts.end_id) {
    tokenizer.turn_end = turn_end->second;
  }
  tokenizer.files["tokenizer_config.json"] =
      TokenizerConfig(spec, {facts.separator, facts.end}, chat);
  return tokenizer;
}

// The tokenizer's files, or none for token files that name no tokenizer.
absl::StatusOr<ExportedTokenizer> TokenizerOfJob(const v1::JobSpec& spec,
                                                 const std::filesystem::path& folder) {
  const v1::DataSpec& data = spec.data();
  const bool token_files = ReadsOnlyTokens(data);
  if (!folder.empty() && !HasTokenizerFiles(data.tokenizer())) {
    const bool none = token_files && data.tokenizer() != v1::TOKENIZER_BYTE;
    return absl::InvalidArgumentError(absl::StrCat(
        "--tokenizer: ", folder.string(),
        none ? " (the job's token files name no tokenizer); leave it out, and copy the "
               "tokenizer's files into the exported folder"
             : " (the job's tokenizer is byte, which has no files); leave it out"));
  }
  if (HasTokenizerFiles(data.tokenizer())) {
    const std::filesystem::path from =
        folder.empty() ? std::filesystem::path(data.tokenizer_path()) : folder;
    const std::vector<std::filesystem::path> files = TokenizerFilesOf(data.tokenizer(), from);
    if (!from.empty()) return files.size() == 1 ? AsItIs(spec, files[0]) : Gpt2(spec, from);
    if (!token_files) {
      return absl::NotFoundError(absl::StrCat("data.tokenizer_path: not set (",
                                              TokenizerFileWords(data.tokenizer()),
                                              "); name it with --tokenizer"));
    }
  }
  if (data.tokenizer() == v1::TOKENIZER_BYTE || !token_files) return Bytes(spec);
  const int32_t separator = data.tokenizer() == v1::TOKENIZER_GPT2 ? 50256 : kNoSeparator;
  return ExportedTokenizer{.ids = {separator, separator}};
}

}  // namespace

absl::StatusOr<ExportedTokenizer> ExportTokenizer(const v1::JobSpec& spec,
                                                  const std::filesystem::path& folder) {
  NSA_ASSIGN_OR_RETURN(ExportedTokenizer tokenizer, TokenizerOfJob(spec, folder));
  if (!ReadsOnlyTokens(spec.data()) || !spec.data().has_separator()) return tokenizer;
  NSA_ASSIGN_OR_RETURN(const int32_t separator, ParseSeparator(spec.data().separator()));
  if (separator == tokenizer.ids.separator) return tokenizer;
  if (separator != kNoSeparator && !tokenizer.files.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data.separator: ", separator, " (the tokenizer's is ", tokenizer.ids.separator,
        "): another tokenizer wrote the token files of this model; set "
        "data.tokenizer in jobs on token files"));
  }
  tokenizer.ids = {separator, separator};
  return tokenizer;
}

}  // namespace nsa
