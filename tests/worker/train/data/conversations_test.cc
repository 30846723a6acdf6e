// data.loss_on: assistant: from files of conversations to rows whose answers are learned.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/data/prepared.h"
#include "gmock/gmock.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/train/data/prepared/prepared_jobs.h"
#include "worker/train/data/loader.h"
#include "worker/train/data/packed_rows.h"
#include "worker/train/data/prepared/held_shards.h"
#include "worker/train/data/prepared/token_key.h"

namespace nsa::train {
namespace {

namespace fs = std::filesystem;

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kEnd[] = "<|im_end|>";

// A line with a conversation: roles and contents by turns.
std::string Line(const std::vector<std::string>& messages) {
  std::string list;
  for (size_t i = 0; i < messages.size(); i += 2) {
    absl::StrAppend(&list, i > 0 ? ", " : "", R"({"role": ")", messages[i], R"(", "content": ")",
                    messages[i + 1], "\"}");
  }
  return absl::StrCat(R"({"id": 1, "messages": [)", list, "]}\n");
}

// What ChatML makes of it, with the separator of bytes in front.
std::string ChatMl(const std::vector<std::string>& messages) {
  std::string text(1, '\0');
  for (size_t i = 0; i < messages.size(); i += 2) {
    absl::StrAppend(&text, "<|im_start|>", messages[i], "\n", messages[i + 1], kEnd, "\n");
  }
  return text;
}

v1::JobSpec ChatJob(const fs::path& path, int32_t seq_len, int32_t batch_size = 1) {
  v1::JobSpec spec = JobOn([&](v1::DataSpec* data) {
    data->set_source(path.extension() == ".parquet" ? v1::DATA_SOURCE_PARQUET
                                                    : v1::DATA_SOURCE_JSONL);
    data->add_path(path);
    data->set_loss_on(v1::LOSS_ON_ASSISTANT);
    data->set_val_fraction(0);
  });
  spec.mutable_train()->set_seq_len(seq_len);
  spec.mutable_train()->set_batch_size(batch_size);
  ApplyDefaults(&spec);
  return spec;
}

absl::StatusOr<std::unique_ptr<DataLoader>> Open(const v1::JobSpec& spec) {
  return DataLoader::Open({.spec = spec, .vocab = 256});
}

// The batches of an epoch.
std::vector<Batch> Epoch(const v1::JobSpec& spec) {
  std::vector<Batch> batches;
  const auto loader = Open(spec);
  EXPECT_OK(loader);
  if (!loader.ok()) return batches;
  const int64_t count = (*loader)->info().rows / spec.train().batch_size();
  for (int64_t i = 0; i < count; ++i) {
    auto batch = (*loader)->Next();
    EXPECT_OK(batch);
    batches.push_back(*std::move(batch));
  }
  return batches;
}

std::string TextOf(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) {
    if (token >= 0) text += static_cast<char>(token);
  }
  return text;
}

TEST(Conversations, OnlyAnswersAndTheirEndsAreLearned) {
  const TempDir dir;
  const std::vector<std::string> talk = {"system", "Be brief.", "user", "Hi",        "assistant",
                                         "Yo",     "user",      "Bye",  "assistant", "Ciao"};
  Write(dir / "chats.jsonl", Line(talk));
  const std::vector<Batch> epoch = Epoch(ChatJob(dir / "chats.jsonl", 300));
  ASSERT_EQ(epoch.size(), 1u);
  const std::string text = ChatMl(talk);
  EXPECT_EQ(TextOf(epoch[0].tokens).substr(0, text.size()), text);
  EXPECT_EQ(TextOf(epoch[0].targets), absl::StrCat("Yo", kEnd, "Ciao", kEnd));
  for (size_t t = 0; t < epoch[0].targets.size(); ++t) {
    const int32_t target = epoch[0].targets[t];
    EXPECT_TRUE(target < 0 || target == text.at(t + 1)) << t;
  }
}

TEST(Conversations, AQuestionAndItsAnswerAreTheSameAsTwoMessages) {
  const TempDir dir;
  Write(dir / "pairs.jsonl",
        "{\"prompt\": \"Hi\", \"completion\": \"Yo\"}\n"
        "{\"prompt\": \"Hi\", \"completion\": null}\n");
  Write(dir / "chats.jsonl", Line({"user", "Hi", "assistant", "Yo"}));
  const auto pairs = Epoch(ChatJob(dir / "pairs.jsonl", 100));
  const auto chats = Epoch(ChatJob(dir / "chats.jsonl", 100));
  ASSERT_EQ(pairs.size(), 1u);
  EXPECT_EQ(pairs[0].tokens, chats[0].tokens);
  EXPECT_EQ(pairs[0].targets, chats[0].targets);
  EXPECT_EQ((*Open(ChatJob(dir / "pairs.jsonl", 100)))->info().null_rows, 1);
}

TEST(Conversations, ParquetHasTheSameAsJsonLines) {
  const TempDir dir;
  // A row with two messages, one without a list, one with two.
  const NestedRows roles = {
      {{0, 3, "user"}, {1, 3, "assistant"}}, {{0, 0, ""}}, {{0, 3, "user"}, {1, 3, "assistant"}}};
  const NestedRows contents = {
      {{0, 3, "Hi"}, {1, 3, "Yo"}}, {{0, 0, ""}}, {{0, 3, "Bye"}, {1, 3, "Ciao"}}};
  const ParquetOptions options = {
      .path = {{"messages", 1}, {"list", 2}, {"element", 0}, {"role", 1}}, .twin = "content"};
  Write(dir / "chats.parquet", ParquetText(roles, options).Twin(contents).Write());
  Write(dir / "chats.jsonl",
        Line({"user", "Hi", "assistant", "Yo"}) + Line({"user", "Bye", "assistant", "Ciao"}));
  const auto rows = Epoch(ChatJob(dir / "chats.parquet", 70));
  const auto lines = Epoch(ChatJob(dir / "chats.jsonl", 70));
  ASSERT_EQ(rows.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rows[i].tokens, lines[i].tokens);
    EXPECT_EQ(rows[i].targets, lines[i].targets);
  }
  EXPECT_EQ((*Open(ChatJob(dir / "chats.parquet", 70)))->info().null_rows, 1);
}

TEST(Conversations, WhatIsNoneIsRefusedWithItsLine) {
  const std::string good = Line({"user", "Hi", "assistant", "Yo"});
  const std::pair<std::string, std::string> faults[] = {
      {"{\"text\": \"Hi\"}\n", "no field 'messages', nor prompt and completion (fields: text)"},
      {"{\"messages\": []}\n", "the field 'messages' is an empty list"},
      {"{\"messages\": [{\"from\": \"human\", \"value\": \"Hi\"}]}\n",
       "messages[0] is not an object with the texts role and content (fields: from, value)"},
      {Line({"human", "Hi", "assistant", "Yo"}), "messages[0].role: 'human'"},
      {Line({"user", "Hi"}), "no message is of the assistant"},
      {Line({"user", "Hi", "assistant", " "}), "messages[1].content: empty"},
  };
  for (const auto& [line, fault] : faults) {
    const TempDir dir;
    Write(dir / "chats.jsonl", good + line);
    const absl::Status status = Open(ChatJob(dir / "chats.jsonl", 100)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("chats.jsonl:2: "), HasSubstr(fault)));
  }
}

TEST(Conversations, TextFilesHaveNone) {
  const TempDir dir;
  Write(dir / "a.txt", "text");
  v1::JobSpec spec = ChatJob(dir / "a.txt", 100);
  spec.mutable_data()->set_source(v1::DATA_SOURCE_TEXT);
  const absl::Status status = Open(spec).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("set data.source to jsonl or parquet"));
}

// A store of documents of these lengths, each of whose last `answers` tokens are learned.
std::shared_ptr<TokenStore> StoreOf(const std::vector<int64_t>& lengths, int64_t answers) {
  auto store = std::make_shared<TokenStore>();
  HeldShards shards(1000, /*marked=*/true);
  int32_t number = 1;
  for (const int64_t length : lengths) {
    std::vector<Token> tokens(static_cast<size_t>(length), number++);
    tokens[0] = kBeginMark;
    for (int64_t i = length - answers; i < length; ++i)
      tokens[static_cast<size_t>(i)] |= kAnswerMark;
    const ShardDocument document = shards.Add({}, tokens);
    store->Append(document.shard, document.begin, document.end);
  }
  return store;
}

std::shared_ptr<PackedRows> Packed(const std::vector<int64_t>& lengths, int64_t answers,
                                   int32_t seq_len) {
  auto rows = PackedRows::Pack(StoreOf(lengths, answers), seq_len, 0, v1::DATA_SOURCE_JSONL);
  EXPECT_OK(rows);
  return *std::move(rows);
}

// The documents of each row in their order; 0 is padding.
std::vector<std::vector<int32_t>> DocumentsOf(PackedRows& rows, int32_t seq_len) {
  std::vector<std::vector<int32_t>> all;
  std::vector<int32_t> row(static_cast<size_t>(seq_len) + 1);
  for (int64_t r = 0; r < rows.rows(); ++r) {
    EXPECT_OK(rows.Read(r, row));
    std::vector<int32_t>& documents = all.emplace_back();
    for (size_t t = 0; t < row.size(); ++t) {
      if ((row[t] & kBeginMark) == 0) continue;
      const bool padding = t + 1 == row.size() || WithoutMarks(row[t + 1]) == 0;
      documents.push_back(padding ? 0 : WithoutMarks(row[t + 1]));
    }
  }
  return all;
}

TEST(PackedRows, AConversationGoesToTheFullestRowInWhichItFits) {
  const auto rows = Packed({60, 50, 30, 39, 20, 100}, 5, 99);
  EXPECT_THAT(DocumentsOf(*rows, 99), ElementsAre(ElementsAre(1, 3, 0), ElementsAre(2, 4, 0),
                                                  ElementsAre(5, 0), ElementsAre(6)));
  EXPECT_EQ(rows->summary().positions(), 400);
  EXPECT_EQ(rows->summary().padding_tokens(), 10 + 11 + 80);
  EXPECT_EQ(rows->summary().answer_tokens(), 30);
  EXPECT_EQ(rows->summary().cut_documents(), 0);
}

TEST(PackedRows, OfALongConversationTheBeginningIsKept) {
  // 13 tokens, of which the last 5 are learned: of 10 there are 2. Of 20 there is none.
  const auto rows = Packed({13, 20}, 5, 9);
  EXPECT_EQ(rows->rows(), 1);
  EXPECT_EQ(rows->summary().cut_documents(), 1);
  EXPECT_EQ(rows->summary().cut_tokens(), 3);
  EXPECT_EQ(rows->summary().answer_tokens(), 2);
  EXPECT_EQ(rows->summary().unlearned_documents(), 1);
}

TEST(Conversations, TokensSeeNoOtherConversationAndNoPadding) {
  const TempDir dir;
  const std::vector<std::string> first = {"user", "Hi", "assistant", "Yo"},
                                 second = {"user", "Bye", "assistant", "Ciao"};
  Write(dir / "chats.jsonl", Line(first) + Line(second));
  const std::vector<Batch> epoch = Epoch(ChatJob(dir / "chats.jsonl", 200));
  ASSERT_EQ(epoch.size(), 1u);
  const auto one = static_cast<int32_t>(ChatMl(first).size());
  const int32_t both = one + static_cast<int32_t>(ChatMl(second).size());
  for (int32_t t = 0; t < 200; ++t) {
    EXPECT_EQ(epoch[0].doc_start[static_cast<size_t>(t)], t < one ? 0 : t < both ? one : both) << t;
  }
}

// An end of an answer that is also the separator begins no document.
TEST(Conversations, ASeparatorWithinAConversationBelongsToIt) {
  const TempDir dir;
  Write(dir / "chats.jsonl", Line({"user", "a\\u0000b", "assistant", "c\\u0000d"}));
  const std::vector<Batch> epoch = Epoch(ChatJob(dir / "chats.jsonl", 67));
  ASSERT_EQ(epoch.size(), 1u);
  EXPECT_EQ(std::ranges::count(epoch[0].doc_start, 0), 67);
  EXPECT_EQ((*Open(ChatJob(dir / "chats.jsonl", 67)))->info().inner_separators, 0);
}

std::string ManyChats(int count) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += Line({"user", absl::StrCat("question ", i), "assistant",
                   std::string(static_cast<size_t>(1 + i * 37 % 90), 'a' + i % 26)});
  }
  return lines;
}

TEST(Conversations, RanksDivideTheRowsOfOne) {
  const TempDir dir;
  Write(dir / "chats.jsonl", ManyChats(40));
  const v1::JobSpec spec = ChatJob(dir / "chats.jsonl", 255, 4);
  const auto whole = Open(spec);
  ASSERT_OK(whole);
  std::vector<std::unique_ptr<DataLoader>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    auto loader = DataLoader::Open({.spec = spec, .rank = rank, .world_size = 2, .vocab = 256});
    ASSERT_OK(loader);
    ranks.push_back(*std::move(loader));
  }
  for (int i = 0; i < 6; ++i) {
    const auto all = (*whole)->Next();
    ASSERT_OK(all);
    std::vector<int32_t> targets;
    for (const auto& rank : ranks) {
      const auto part = rank->Next();
      ASSERT_OK(part);
      targets.insert(targets.end(), part->targets.begin(), part->targets.end());
    }
    EXPECT_EQ(targets, all->targets);
  }
}

TEST(Conversations, PreparedTheyHaveTheSameRows) {
  const TempDir dir;
  Write(dir / "chats.jsonl", ManyChats(40));
  const v1::JobSpec spec = ChatJob(dir / "chats.jsonl", 255, 2);
  ReadProgress progress;
  ASSERT_OK(PrepareData({.spec = spec, .out = dir / "prepared"}, &progress));
  v1::JobSpec prepared = JobOnPrepared(spec, dir / "prepared");
  const auto manifest = ReadPrepared(dir / "prepared/train.tokens");
  ASSERT_OK(manifest);
  EXPECT_EQ(manifest->format_version(), 2);
  EXPECT_EQ(manifest->token_bytes(), 4);
  EXPECT_THAT(manifest->conversations().chat_format(), testing::StartsWith("chatml-"));
  const std::vector<Batch> files = Epoch(spec), folders = Epoch(prepared);
  ASSERT_EQ(files.size(), folders.size());
  int64_t answers = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    EXPECT_EQ(files[i].tokens, folders[i].tokens);
    EXPECT_EQ(files[i].targets, folders[i].targets);
    EXPECT_EQ(files[i].doc_start, folders[i].doc_start);
  }
  for (int i = 0; i < 40; ++i) answers += 1 + i * 37 % 90 + 10;
  EXPECT_EQ(manifest->conversations().answer_tokens(), answers);

  prepared.mutable_data()->set_loss_on(v1::LOSS_ON_ALL);
  EXPECT_THAT(std::string(Open(prepared).status().message()),
              HasSubstr("was prepared with data.loss_on: assistant"));
}

TEST(Conversations, TextsArePreparedAsBefore) {
  const TempDir dir;
  Write(dir / "a.jsonl", Lines(20));
  v1::JobSpec spec = ChatJob(dir / "a.jsonl", 16);
  spec.mutable_data()->set_loss_on(v1::LOSS_ON_ALL);
  ReadProgress progress;
  ASSERT_OK(PrepareData({.spec = spec, .out = dir / "prepared"}, &progress));
  const auto manifest = ReadPrepared(dir / "prepared/train.tokens");
  ASSERT_OK(manifest);
  EXPECT_EQ(manifest->format_version(), 1);
  EXPECT_EQ(manifest->token_bytes(), 1);
  EXPECT_FALSE(manifest->has_conversations());
}

TEST(Conversations, TheCacheTellsChatFormatsApart) {
  const TempDir dir;
  Write(dir / "a.jsonl", Lines(20));
  ReadProgress progress;
  const auto key = [&](bool conversations, const std::string& format) {
    const SetOptions set = {.files = {.source = v1::DATA_SOURCE_JSONL,
                                      .text_field = "messages",
                                      .conversations = conversations},
                            .paths = {dir / "a.jsonl"},
                            .vocab = 100'000,
                            .chat_format = format};
    const auto made = TokenKey(set, 0, &progress);
    EXPECT_OK(made);
    return made->value_or("");
  };
  EXPECT_EQ(key(true, "chatml-1"), key(true, "chatml-1"));
  EXPECT_NE(key(true, "chatml-1"), key(true, "llama3-2"));
  EXPECT_NE(key(true, ""), key(false, ""));
}

TEST(Conversations, TheSummaryCountsWhatFillsTheRows) {
  const TempDir dir;
  Write(dir / "chats.jsonl", Line({"user", "Hi", "assistant", "Yo"}) +
                                 Line({"user", std::string(300, 'q'), "assistant", "Yo"}) +
                                 Line({"user", "Hi", "assistant", std::string(300, 'a')}));
  const auto loader = Open(ChatJob(dir / "chats.jsonl", 199));
  ASSERT_OK(loader);
  const v1::CorpusSummary summary = SummaryOf((*loader)->info());
  EXPECT_EQ(summary.packing().positions(), 400);
  EXPECT_EQ(summary.packing().unlearned_documents(), 1);
  EXPECT_EQ(summary.packing().cut_documents(), 1);
  ASSERT_EQ((*loader)->info().notes.size(), 1u);
  EXPECT_EQ((*loader)->info().notes[0].reason, Reason::kPacking);
  EXPECT_THAT((*loader)->info().notes[0].text,
              AllOf(HasSubstr("1 conversation longer than a sequence cut at the end"),
                    HasSubstr("1 conversation left out")));
}

TEST(Conversations, AFewAreHeldOutHoweverShortTheyAre) {
  const TempDir dir;
  Write(dir / "chats.jsonl", ManyChats(50));
  v1::JobSpec spec = ChatJob(dir / "chats.jsonl", 8191);
  spec.mutable_data()->set_val_fraction(0.1);
  const auto loader = Open(spec);
  ASSERT_OK(loader);
  EXPECT_EQ((*loader)->info().val_rows, 1);
  EXPECT_GE((*loader)->info().val_documents, 1);
  EXPECT_LE((*loader)->info().val_documents, 15);
  const auto batch = (*loader)->Eval(0);
  ASSERT_OK(batch);
  EXPECT_GT(std::ranges::count_if(batch->targets, [](int32_t t) { return t >= 0; }), 0);
}

}  // namespace
}  // namespace nsa::train
