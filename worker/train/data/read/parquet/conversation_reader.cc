#include "worker/train/data/read/parquet/conversation_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/job/data/json_line.h"

namespace nsa::train::parquet {

absl::StatusOr<std::unique_ptr<ConversationReader>> ConversationReader::Open(
    const std::filesystem::path& path, std::string_view messages_field, ReadProgress* progress) {
  auto first = ColumnReader::Open(path, messages_field, progress, "role");
  const bool list = !absl::IsInvalidArgument(first.status());
  if (list) {
    NSA_RETURN_IF_ERROR(first.status());
    NSA_ASSIGN_OR_RETURN(auto contents,
                         ColumnReader::Open(path, messages_field, progress, "content"));
    return std::unique_ptr<ConversationReader>(
        new ConversationReader(path.string(), list, *std::move(first), std::move(contents)));
  }
  const absl::Status no_list = first.status();
  first = ColumnReader::Open(path, kPromptField, progress);
  if (absl::IsInvalidArgument(first.status())) return no_list;
  NSA_RETURN_IF_ERROR(first.status());
  NSA_ASSIGN_OR_RETURN(auto completions, ColumnReader::Open(path, kCompletionField, progress));
  return std::unique_ptr<ConversationReader>(
      new ConversationReader(path.string(), list, *std::move(first), std::move(completions)));
}

absl::StatusOr<bool> ConversationReader::Next(std::vector<ChatMessage>* messages) {
  messages->clear();
  return list_ ? NextOfList(messages) : NextPair(messages);
}

absl::StatusOr<bool> ConversationReader::NextOfList(std::vector<ChatMessage>* messages) {
  std::vector<std::string> roles, contents;
  const auto empty = [](const std::vector<std::string>& texts) {
    return std::ranges::all_of(texts, &std::string::empty);
  };
  while (true) {
    NSA_ASSIGN_OR_RETURN(const bool found, first_->NextElements(&roles));
    NSA_ASSIGN_OR_RETURN(const bool both, second_->NextElements(&contents));
    if (found != both || (found && roles.size() != contents.size())) {
      return absl::DataLossError(absl::StrFormat(
          "%s: row %d: %d roles and %d contents; the file is damaged, write it again", name_,
          row_ + 1, found ? roles.size() : 0, both ? contents.size() : 0));
    }
    if (!found) return false;
    ++row_;
    if (!empty(roles) || !empty(contents)) break;
    ++nulls_;
  }
  for (size_t i = 0; i < roles.size(); ++i) {
    messages->push_back({std::move(roles[i]), std::move(contents[i])});
  }
  return true;
}

absl::StatusOr<bool> ConversationReader::NextPair(std::vector<ChatMessage>* messages) {
  std::string_view prompt, completion;
  bool more = true;
  const auto advance = [&](ColumnReader& reader, std::string_view* text) -> absl::Status {
    NSA_ASSIGN_OR_RETURN(more, reader.Next(text));
    return absl::OkStatus();
  };
  NSA_RETURN_IF_ERROR(advance(*first_, &prompt));
  if (more) NSA_RETURN_IF_ERROR(advance(*second_, &completion));
  while (more && first_->row() != second_->row()) {  // one of them lacks the other
    NSA_RETURN_IF_ERROR(first_->row() < second_->row() ? advance(*first_, &prompt)
                                                       : advance(*second_, &completion));
  }
  if (!more) return false;
  nulls_ += first_->row() - row_ - 1;
  row_ = first_->row();
  messages->push_back({"user", std::string(prompt)});
  messages->push_back({"assistant", std::string(completion)});
  return true;
}

}  // namespace nsa::train::parquet
