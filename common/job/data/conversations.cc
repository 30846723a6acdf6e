#include "common/job/data/conversations.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/chat/chat_template.h"
#include "common/job/data/sha256.h"
#include "common/job/data/tokenizer_files.h"

namespace nsa {
namespace {

// Texts can hold anything, so each begins with its length.
void Add(std::string_view text, Sha256Sum* sum) {
  sum->Add(absl::StrCat(text.size(), ":"));
  sum->Add(text);
}

void Add(const std::vector<ChatPiece>& pieces, Sha256Sum* sum) {
  sum->Add(absl::StrCat(pieces.size(), ";"));
  for (const ChatPiece& piece : pieces) {
    sum->Add(absl::StrCat(piece.control ? 1 : 0, piece.answer ? 1 : 0));
    Add(piece.text, sum);
  }
}

void Add(const ChatTurn& turn, Sha256Sum* sum) {
  Add(turn.before, sum);
  Add(turn.behind, sum);
  sum->Add(turn.trim ? "trim;" : ";");
}

// All tokens of the sequences of an epoch.
double PositionsOf(const v1::CorpusSummary& corpus) {
  const v1::PackingSummary& packing = corpus.packing();
  return static_cast<double>(std::max<int64_t>(packing.positions(), 1));
}

}  // namespace

absl::StatusOr<ChatFormat> ChatFormatOf(const v1::DataSpec& data) {
  if (!HasTokenizerFiles(data.tokenizer())) return NamedChatFormat("chatml");
  const std::vector<std::filesystem::path> files =
      TokenizerFilesOf(data.tokenizer(), data.tokenizer_path());
  return ReadChatFormat(files.front().parent_path());
}

std::vector<std::string> AnswerEnds(const v1::DataSpec& data) {
  if (data.loss_on() != v1::LOSS_ON_ASSISTANT) return {};
  const absl::StatusOr<ChatFormat> format = ChatFormatOf(data);
  return format.ok() ? format->stops : std::vector<std::string>();
}

std::string ChatFormatId(const ChatFormat& format) {
  constexpr size_t kDigits = 16;
  Sha256Sum sum;
  Add(format.begin, &sum);
  for (const ChatTurn* turn : {&format.system, &format.user, &format.assistant}) Add(*turn, &sum);
  sum.Add(absl::StrCat(static_cast<int>(format.system_place), ";", format.alternates ? 1 : 0, ";",
                       static_cast<int>(format.thoughts), ";"));
  sum.Add(format.default_system ? "system;" : ";");
  Add(format.default_system.value_or(""), &sum);
  return absl::StrCat(format.name, "-", sum.Hex().substr(0, kDigits));
}

std::string PackingText(const v1::CorpusSummary& corpus) {
  if (!corpus.has_packing()) return "";
  const v1::PackingSummary& packing = corpus.packing();
  const auto percent = [&](int64_t tokens) {
    return absl::StrFormat("%.0f %%", 100 * static_cast<double>(tokens) / PositionsOf(corpus));
  };
  std::string text =
      absl::StrCat(percent(packing.answer_tokens()), " of the positions are answers, ",
                   percent(packing.padding_tokens()), " padding");
  if (packing.cut_documents() > 0) {
    absl::StrAppend(&text, "; ", Count(packing.cut_documents(), "conversation"),
                    " longer than a sequence cut at the end (",
                    Count(packing.cut_tokens(), "token"), ")");
  }
  if (packing.unlearned_documents() > 0) {
    absl::StrAppend(&text, "; ", Count(packing.unlearned_documents(), "conversation"),
                    " left out, whose answers begin behind the cut");
  }
  return text;
}

bool PacksBadly(const v1::CorpusSummary& corpus) {
  const v1::PackingSummary& packing = corpus.packing();
  return packing.cut_documents() > 0 || packing.unlearned_documents() > 0 ||
         static_cast<double>(packing.padding_tokens()) > 0.25 * PositionsOf(corpus);
}

}  // namespace nsa
