/* Attention of two to eight rows, each a token of a sequence, and its output projection.
 *
 * Neighbouring rows may be tokens of one sequence at consecutive positions. The cache then lacks
 * the positions of the rows before, which this pass makes. A row's attention takes those from the
 * lists of q, k and v, and writes them to their places in the chunks that came from the cache, so
 * that it adds in the same order as a pass of only this row.
 */
#pragma once

#if MEGA_QUANT_TYPES
#include "vm/mega/batch_fragments.cuh"
#else
#include "vm/mega/batch_product.cuh"
#endif
#include "vm/mega/batch_parts.cuh"
#include "vm/mega/heads.cuh"

MEGA_FN int row_position(const mega_arguments &a, uint32_t pass, int row)
{
    return a.rows[row].position + (int)(pass - a.first_pass);
}

/* ---- attention of a KV head ---- */

/* A long row's attention is in parts, at most as many as the KV head has blocks. Of the other rows
 * one block computes the whole: block in.part has rows in.part, in.part + in.parts and so on. */
MEGA_FN bool in_parts(const mega_arguments &a, int row, int pass_here)
{
    return a.rows[row].position + pass_here >= a.recompute;
}
MEGA_FN bool any_in_parts(const mega_arguments &a, int pass_here)
{
    bool any = false;
#pragma unroll
    for (int row = 0; row < MEGA_ROWS; row++)
        any = any || (row < a.n_rows && in_parts(a, row, pass_here));
    return any;
}

/* Rows that attend to parts of a context together: two of a sequence, if their heads are not more
 * than the tensor cores multiply at once, and if both contexts have the same chunks. */
struct row_group {
    int first, count; /* rows */
    bool parts;       /* in parts; else one row, of which this block computes the whole */
    int begin, end;   /* this block's parts */
};
template <int DIM> MEGA_FN int rows_joined(const mega_arguments &a, int row, int pass_here)
{
    int old = a.rows[row].position + pass_here;
    bool alike = !MEGA_QUANT_TYPES && a.joins && row + 1 < a.n_rows &&
                 a.rows[row + 1].first_page == a.rows[row].first_page &&
                 context_chunks<DIM>(old) == context_chunks<DIM>(old + 1);
    return alike ? 2 : 1;
}

template <int DIM>
MEGA_FN int context_parts(const mega_arguments &a, const instruction &in, int old)
{
    const int each = part_shape<DIM>::CHUNKS;
    return min((seen_chunks<DIM>(old, a.window) + each - 1) / each, (int)in.parts);
}

/* The number of parts of the group that begins at a row, and its rows; 0: the row is not in parts.
 */
template <int DIM>
MEGA_FN int group_parts(const mega_arguments &a, const instruction &in, int first, int pass_here,
                        int *count)
{
    *count = 1;
    if (!in_parts(a, first, pass_here)) return 0;
    *count = rows_joined<DIM>(a, first, pass_here);
    int old = a.rows[first + *count - 1].position + pass_here;
    return context_parts<DIM>(a, in, old);
}
template <int DIM>
MEGA_FN int all_parts(const mega_arguments &a, const instruction &in, int pass_here)
{
    int all = 0;
#pragma unroll 1
    for (int first = 0, count; first < a.n_rows; first += count)
        all += group_parts<DIM>(a, in, first, pass_here, &count);
    return all;
}

/* Calls work(group) for the rows that this block works on, first those that are its own. Of all
 * groups' parts, one group's after another's, each block of the KV head has as many, and they are
 * consecutive, so that a block waits for the queries of few rows. pass_here counts from the
 * launch's first pass. One function, so that the code of attention is there once. */
template <int DIM, typename WORK>
MEGA_FN void for_rows(const mega_arguments &a, const instruction &in, int pass_here, WORK work)
{
    row_group group = {in.part, 1, false, 0, 1};
    int begin = 0, end = 0; /* the block's parts, counted from the current group's first */
    for (;; group.first += group.parts ? group.count : in.parts) {
        if (group.first >= a.n_rows) {
            if (group.parts || !any_in_parts(a, pass_here)) return;
            const int all = all_parts<DIM>(a, in, pass_here);
            begin = part_begin(a, all * in.part), end = part_begin(a, all * (in.part + 1));
            group = {0, 1, true, 0, 0};
        }
        if (!group.parts) {
            group.end = !in_parts(a, group.first, pass_here);
        } else {
            int n = group_parts<DIM>(a, in, group.first, pass_here, &group.count);
            group.begin = max(begin, 0);
            group.end = min(end, n);
            begin -= n, end -= n;
        }
        if (group.begin < group.end) work(group);
    }
}

/* What for_rows() calls work() for, in shared memory from a pass's first layer to its last:
 * walking the rows takes longer than a row's queries. The logits' keys are there later. */
struct group_table {
    int32_t count;
    struct {
        uint8_t first, count, parts, begin, end;
    } groups[MEGA_ROWS];

    MEGA_FN row_group operator[](int i) const
    {
        return {groups[i].first, groups[i].count, groups[i].parts != 0, groups[i].begin,
                groups[i].end};
    }
};
static_assert(sizeof(group_table) <= MEGA_WARPS * sizeof(uint64_t), "where keys are");

template <int DIM>
MEGA_FN void make_groups(const mega_arguments &a, const instruction &in, int pass_here,
                         group_table &to)
{
    int n = 0;
    for_rows<DIM>(a, in, pass_here, [&](const row_group &group) {
        to.groups[n].first = (uint8_t)group.first, to.groups[n].count = (uint8_t)group.count;
        to.groups[n].parts = group.parts;
        to.groups[n].begin = (uint8_t)group.begin, to.groups[n].end = (uint8_t)group.end;
        n++;
    });
    to.count = n;
}

/* The chunks of a row's cache that this block reads, from *first. */
template <int DIM>
MEGA_FN int row_chunks(const mega_arguments &a, const instruction &in, bool parts, int old,
                       int *first)
{
    const int each = part_shape<DIM>::CHUNKS, n = seen_chunks<DIM>(old, a.window);
    if (parts && (each == 1 || n > each * (int)in.parts))
        return attention_chunks<DIM>(a, in, old, a.window, first);
    const int skipped = parts ? in.part * each : 0;
    *first = unseen_chunks<DIM>(old, a.window) + skipped;
    return parts ? min(each, n - skipped) : n;
}

MEGA_FN int64_t *head_list(const mega_arguments &a, const instruction &in, int row, int kv_head,
                           int n)
{
    int64_t layer = (int64_t)row * a.n_layers + in.layer;
    return (int64_t *)a.heads + (layer * a.n_kv_heads + kv_head) * n;
}
/* Stores a value for all blocks of the KV head, tagged with the pass. */
MEGA_FN void store_tagged(const mega_block &b, int64_t *list, int i, float v)
{
    store_relaxed(list + i, (int64_t)((uint64_t)(b.pass() + 1) << 32 | __float_as_uint(v)));
}

/* The rows just before a row that read earlier tokens of the same sequence: no two sequences have
 * the same list of pages. */
MEGA_FN int rows_before(const mega_arguments &a, int row)
{
    int n = 0;
    while (!MEGA_QUANT_TYPES && n < row && a.rows[row - n - 1].first_page == a.rows[row].first_page)
        n++;
    return n;
}

/* Keys and values that this pass makes for positions before a row's, in shared memory after
 * attention's outputs: [position][2][DIM] in the cache's type. A chunk takes 16 bytes a thread. */
template <int DIM> struct new_positions {
    enum { EACH = 2 * DIM, UNITS = EACH / 8 };
    static MEGA_FN uint32_t at(const mega_arguments &a)
    {
        return a.shared.planes + 4 * attention_chunk<DIM>::PIECE * share_pitch<DIM>(a);
    }
};

/* How many there are, in shared memory since wait_group(). */
template <int DIM> MEGA_FN int new_positions_here(const mega_arguments &a, const mega_block &b)
{
    return MEGA_QUANT_TYPES ? 0 : *b.at<int>(a.shared.qkv + attention_inputs<DIM>::NEW);
}

/* Waits for the queries of the group's rows, for the newest key and value of the last one, and for
 * the new positions before that row. */
template <int DIM, bool HALF>
MEGA_FN void wait_group(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head,
                        const row_group &group)
{
    typedef new_positions<DIM> made;
    const int last = group.first + group.count - 1, before = rows_before(a, last);
    const int each = a.group * DIM, n = group.count * each + 2 * DIM, n_new = before * made::EACH;
    if (b.thread == 0) *b.at<int>(a.shared.qkv + attention_inputs<DIM>::NEW) = before;
#pragma unroll 1
    for (int i = 2 * b.thread; i < max(n, n_new); i += 2 * MEGA_CONSUMERS) {
        const int slot = i >= each && group.count > 1, row = last - before + i / made::EACH;
        const int64_t *input = qkv_list<DIM>(a, in, kv_head, group.first + slot) + i - slot * each;
        const int64_t *newer = qkv_list<DIM>(a, in, kv_head, row) + a.group * DIM + i % made::EACH;
        const two_pairs v =
            wait_pairs(a, b, in, i < n ? input : newer, i < n_new ? newer : input, b.pass() + 1);
        if (i < n) store_input<DIM, HALF>(a, b, group.count * a.group, i, v.of[0].x, v.of[0].y);
        if (i < n_new)
            *b.at<uint32_t>(made::at(a) + 2 * i) = cache_words<HALF>(v.of[1].x, v.of[1].y);
    }
    b.sync();
    b.stamp(a, MEGA_WORKS);
}

/* The same where heads have norms: a warp has a head. Vectors are the queries, the newest key and
 * value, then the key and value of each new position. The block with the first part appends the
 * keys of the group's rows. */
template <int DIM, bool HALF>
MEGA_FN void wait_normed_group(const mega_arguments &a, mega_block &b, const mega_entry &e,
                               const row_group &group)
{
    typedef new_positions<DIM> made;
    const int last = group.first + group.count - 1, before = rows_before(a, last);
    const int heads = group.count * a.group, n = heads + 2 + 2 * before;
    const bool appends = !group.parts || group.begin == 0;
    if (b.thread == 0) *b.at<int>(a.shared.qkv + attention_inputs<DIM>::NEW) = before;
#pragma unroll 1
    for (int v = b.warp; v < n; v += MEGA_WARPS) {
        const int slot = v >= a.group && group.count > 1, rest = v - heads; /* 2: the first new */
        const int row = rest < 0   ? group.first + slot
                        : rest < 2 ? last
                                   : last - before + rest / 2 - 1;
        const int kind = rest & 1; /* 0: a key, from the queries on */
        const int member = rest < 0 ? v - slot * a.group : a.group + kind;
        const int position = row_position(a, b.pass(), row);
        head_vector<DIM> x;
        head_turn<DIM> turn;
        turn.load(a, e, rest >= 0, position, b.lane);
        x.wait(a, b, e.in, qkv_list<DIM>(a, e.in, e.weights.kv_head, row) + member * DIM);
        if (rest < 0 || kind == 0) turn.apply(a, x, b.lane);
#pragma unroll
        for (int i = 0; i < x.SETS; i++) {
            const int at = 64 * i + 2 * b.lane;
            if (rest < 2)
                store_input<DIM, HALF>(a, b, heads, v * DIM + at, x.of[i].x, x.of[i].y);
            else
                *b.at<uint32_t>(made::at(a) + 2 * ((rest - 2) * DIM + at)) =
                    cache_words<HALF>(x.of[i].x, x.of[i].y);
        }
        if (appends && rest >= 0 && kind == 0 && row >= group.first)
            append_key<DIM, HALF>(x, key_place<DIM>(a, e, a.rows[row].first_page, position),
                                  b.lane);
    }
    b.sync();
    b.stamp(a, MEGA_WORKS);
}

/* Writes those of a chunk to their places in the stage that holds it. The fence is for the copy
 * that will fill the stage again. */
template <int DIM>
MEGA_FN void add_new_positions(const mega_arguments &a, const mega_block &b, const part_team &team,
                               int old, int chunk)
{
    typedef attention_chunk<DIM> shape;
    typedef new_positions<DIM> made;
    const int n = new_positions_here<DIM>(a, b);
    const int first = old - n - chunk * shape::POSITIONS; /* place of the first of them */
    if (n == 0 || first + n <= 0 || first >= shape::POSITIONS) return;
#pragma unroll 1
    for (int i = 32 * team.warp + b.lane; i < n * made::UNITS; i += 32 * team.warps) {
        const int position = first + i / made::UNITS, unit = i % made::UNITS;
        const int value = unit / (made::UNITS / 2), column = unit % (made::UNITS / 2);
        char *to = b.memory - (b.own - b.ring) + b.place.stage * stage_bytes(a) +
                   (value * 8 + position / shape::PIECE) * shape::PITCH +
                   position % shape::PIECE * DIM * 2 + column * 16;
        if (position < 0 || position >= shape::POSITIONS) continue;
        *(uint4 *)to = *b.at<uint4>(made::at(a) + 16 * i);
        fence_async_shared();
    }
    team.sync();
}
template <int DIM>
MEGA_FN void add_new_positions(const mega_arguments &a, const mega_block &b, int old, int chunk)
{
    add_new_positions<DIM>(a, b, part_team(b), old, chunk);
}

/* Address of the newest key and value of the row before a group's last one, which are the last of
 * the new positions. */
template <int DIM> MEGA_FN uint32_t newest_before(const mega_arguments &a, const mega_block &b)
{
    typedef new_positions<DIM> made;
    return b.own + made::at(a) + 2 * made::EACH * (new_positions_here<DIM>(a, b) - 1);
}

/* The first chunk of a part. */
template <int DIM>
MEGA_FN int part_chunk(const mega_arguments &a, const mega_block &b, int old, int part)
{
    if (!MEGA_QUANT_TYPES) return unseen_chunks<DIM>(old, a.window) + part;
    instruction in = b.current().in;
    int first;
    in.part = part;
    row_chunks<DIM>(a, in, true, old, &first);
    return min(first, context_chunks<DIM>(old));
}

/* What a block's teams do in a round: parts of a group from `begin` on. */
struct team_round {
    part_team team;
    int end, part, old; /* the round's parts end there; this team's, or `end`; see attend() */

    MEGA_FN team_round(const mega_arguments &a, const mega_block &b, const row_group &group,
                       int begin)
        : team(b, group.count, group.end - begin)
    {
        end = min(begin + team.count, group.end), part = min(begin + team.index, end);
        old = row_position(a, b.pass(), group.first + group.count - 1);
    }
};

/* Attends to the block's parts of a group's context, as many at a time as there are teams. */
template <int DIM, bool HALF>
MEGA_FN void attend_parts(const mega_arguments &a, mega_block &b, const row_group &group)
{
#pragma unroll 1
    for (int begin = group.begin; begin < group.end;) {
        value_sums<DIM, HALF> sums;
        int chunks;
        {
            const team_round r(a, b, group, begin);
            const int first = part_chunk<DIM>(a, b, r.old, r.part);
            chunks = r.part < r.end ? part_chunk<DIM>(a, b, r.old, r.part + 1) - first : 0;
            skip_chunks(a, b, first - part_chunk<DIM>(a, b, r.old, begin));
        }
#pragma unroll 1
        for (int c = 0; c < chunks; c++) {
            b.reload();
            const uint32_t at = acquire_chunk(a, b);
            const team_round r(a, b, group, begin);
            const int chunk = part_chunk<DIM>(a, b, r.old, r.part) + c;
            const int begin_of_chunk = chunk * attention_chunk<DIM>::POSITIONS;
            const attended_part part = {at, newest_before<DIM>(a, b), group.count,
                                        r.old - begin_of_chunk,
                                        first_seen(r.old, a.window) - begin_of_chunk};
            add_new_positions<DIM>(a, b, r.team, r.old, chunk);
            if (MEGA_QUANT_TYPES && c) r.team.sync(); /* the chunk before is added up */
            weigh_part<DIM, HALF>(a, b, r.team, part);
            r.team.sync();
            sums.add(a, b, r.team, part);
            release_chunk(a, b);
        }
        b.reload();
        b.stamp(a, MEGA_SIGNALS);
        const team_round r(a, b, group, begin);
        if (r.part < r.end) sums.store(a, b, r.team, group.first, group.count, r.part);
        skip_chunks(a, b,
                    part_chunk<DIM>(a, b, r.old, r.end) -
                        part_chunk<DIM>(a, b, r.old, min(r.part + 1, r.end)));
        b.sync();
        begin = r.end;
    }
}

/* Whether teams attend to the parts. Those of 16-bit weights have the bits of one row's kernel
 * where a part is one chunk; those of quantised weights are faster where parts are up to two. */
template <int DIM>
MEGA_FN bool in_teams(const mega_arguments &a, const mega_block &b, const row_group &group)
{
    const int old = row_position(a, b.pass(), group.first + group.count - 1);
    const int most = MEGA_QUANT_TYPES ? 2 : 1; /* chunks in a part */
    return seen_chunks<DIM>(old, a.window) <= most * (int)b.current().in.parts;
}

/* The attention of a group's rows, or this block's parts of it. */
template <int DIM, bool HALF>
MEGA_FN void attend_group(const mega_arguments &a, mega_block &b, const row_group &group)
{
    if (turning_of(b.current()) & MEGA_NORMED)
        wait_normed_group<DIM, HALF>(a, b, b.current(), group);
    else
        wait_group<DIM, HALF>(a, b, b.current().in, b.current().weights.kv_head, group);
    if (part_shape<DIM>::TEAMS && group.parts && in_teams<DIM>(a, b, group))
        return attend_parts<DIM, HALF>(a, b, group);
#pragma unroll 1
    for (int part = group.begin; part < group.end; part++) {
        b.reload();
        const int last = group.first + group.count - 1, old = row_position(a, b.pass(), last);
        const int kv_head = b.current().weights.kv_head;
        const uint32_t others = newest_before<DIM>(a, b);
        int first;
        instruction in = b.current().in;
        in.part = part;
        const int chunks = row_chunks<DIM>(a, in, group.parts, old, &first);
        head_states<DIM> s;
        attend<DIM, HALF>(a, b, old, first_seen(old, a.window), first, chunks, s, group.count,
                          others);
#pragma unroll 1
        for (int slot = 0; slot < group.count; slot++) {
            const int row = group.first + slot;
            int64_t *list = head_list(a, in, row, kv_head, a.group * DIM);
            store_state<DIM>(a, b, s, slot * a.group);
            b.sync();
            if (group.parts) store_part<DIM>(a, b, in, row * a.n_kv_heads + kv_head);
            if (!group.parts)
                merge_shares<DIM>(a, b, [&](int i, float2 out, float, float sum) {
                    store_tagged(b, list, i + b.lane % 2, (b.lane % 2 ? out.y : out.x) / sum);
                });
            b.sync();
        }
    }
}

template <int DIM, bool HALF>
MEGA_FN void run_batch_attention(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int pass_here = (int)(b.pass() - a.first_pass);
    if (e.in.layer == 0) {
        if (b.thread == 0) make_groups<DIM>(a, e.in, pass_here, *b.at<group_table>(a.shared.keys));
        b.sync();
    }
#pragma unroll 1
    for (int i = 0; i < b.at<group_table>(a.shared.keys)->count; i++) {
        b.reload();
        attend_group<DIM, HALF>(a, b, (*b.at<group_table>(a.shared.keys))[i]);
    }
#pragma unroll 1
    for (int row = e.in.part; row < a.n_rows; row += e.in.parts) {
        if (!in_parts(a, row, pass_here)) continue;
        const int kv_head = e.weights.kv_head;
        int64_t *list = head_list(a, e.in, row, kv_head, a.group * DIM);
        merge_parts<DIM>(a, b, e.in, row * a.n_kv_heads + kv_head,
                         context_parts<DIM>(a, e.in, row_position(a, b.pass(), row)),
                         [&](int i, const float *out) {
                             store_tagged(b, list, i, out[0]);
                             store_tagged(b, list, i + 1, out[1]);
                         });
    }
}

/* Waits for all rows' outputs of the KV head's attention and stores them as planes. */
template <int DIM>
MEGA_FN void wait_heads(const mega_arguments &a, mega_block &b, const instruction &in, int kv_head)
{
    static_assert(MEGA_WARPS == 2 * MEGA_ROWS, "two warps a row");
    const int row = b.warp / 2, n = row < a.n_rows ? a.group * DIM : 0;
#pragma unroll 1
    for (int at = 4 * (b.thread & 63); at < n; at += 4 * 64) {
        const int64_t *list = head_list(a, in, row, kv_head, n) + at;
        watchdog watchdog = {0, 0};
        longlong2 v[2];
        for (;;) {
            uint32_t wrong = 0;
#pragma unroll
            for (int j = 0; j < 2; j++)
                v[j] = load_relaxed_two(list + 2 * j);
#pragma unroll
            for (int j = 0; j < 2; j++)
                wrong |= ((uint32_t)((uint64_t)v[j].x >> 32) ^ (b.pass() + 1)) |
                         ((uint32_t)((uint64_t)v[j].y >> 32) ^ (b.pass() + 1));
            if (!wrong) break;
            __nanosleep(50);
            if (watchdog.expired())
                mega_stuck(a, in, b.entry(), b.pass(), MEGA_WAIT_QKV, b.pass() + 1,
                           (uint32_t)((uint64_t)v[0].x >> 32));
        }
        uint32_t *planes =
            b.at<uint32_t>(a.shared.heads) + (row * a.shared.head_row + plane_place(at)) / 2;
        const int pitch = (int)a.shared.head_plane / 2;
        const float four[4] = {__uint_as_float((uint32_t)v[0].x), __uint_as_float((uint32_t)v[0].y),
                               __uint_as_float((uint32_t)v[1].x),
                               __uint_as_float((uint32_t)v[1].y)};
        if (MEGA_QUANT_TYPES) {
            split_pair(four[0], four[2], planes, pitch);
            split_pair(four[1], four[3], planes + 4, pitch);
        } else {
            split_pair(four[0], four[1], planes, pitch);
            split_pair(four[2], four[3], planes + 1, pitch);
        }
    }
    b.sync();
}

template <int DIM, int BLOCKS>
MEGA_FN void run_batch_output(const mega_arguments &a, mega_block &b, const mega_entry &e)
{
    const int rows = batch_shape<BLOCKS>::ROWS;
    int kv_head = entry_kv_head(a, e.in), begin = e.in.units.begin % a.hidden;
    int n = e.in.units.end - e.in.units.begin, groups = a.group * DIM / 64;
    wait_heads<DIM>(a, b, e.in, kv_head);
    b.stamp(a, MEGA_WORKS);
#if MEGA_QUANT_TYPES
    groups = multiply_heads<DIM>(a, b, e, n);
#else
    batch_heads<rows>(a, b, n, groups);
#endif
    b.stamp(a, MEGA_SIGNALS);
    const float *sums = b.at<float>(a.shared.sums);
    int first = begin & ~1, end = (begin + n - first + 1) / 2 * 2 * MEGA_ROWS;
#pragma unroll 1
    for (int i = b.thread; i < end; i += 2 * MEGA_CONSUMERS) {
        bool there[2];
        int places[2];
        int64_t parts[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            int j = i + k * MEGA_CONSUMERS, row = j / 2 % MEGA_ROWS;
            int column = first + j / (2 * MEGA_ROWS) * 2 + (j & 1);
            there[k] = j < end && column >= begin && column < begin + n && row < a.n_rows;
            const float *of = sums + (there[k] ? (column - begin) * rows + row : 0);
            float sum = 0;
#pragma unroll
            /* All loads before the first addition. */
            for (int s = 0; s < MEGA_MAX_GROUP * DIM / 64; s++)
                if (s < groups) sum += of[s * a.shared.sum_pitch * rows];
            places[k] = residual_place(column, row);
            parts[k] = fixed_part(sum);
        }
        int64_t *next = batch_sums(a, b.pass(), 2 * e.in.layer + 1);
#pragma unroll
        for (int k = 0; k < 2; k++)
            add_relaxed_if(there[k], next + places[k], parts[k]);
    }
    signal_added(a, b);
    b.sync();
}
