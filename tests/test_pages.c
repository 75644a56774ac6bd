/* The pages of the KV cache, compared with a simple model: sequences grow, shrink, fork and end at
 * random. A sequence reads back what it wrote, whatever others write; no page is lost, or free
 * while it is in use; the cost of growth is known in advance.
 */
#include "test.h"

#include "engine/pages.h"

enum { LISTS = 6, PAGES = 24, PAGE_SIZE = 4, POSITIONS = 40, EVENTS = 200000 };

static qp_error error;

/* Page lists, what their sequences wrote, and the memory behind the pages. */
typedef struct world {
    page_pool pool;
    page_list lists[LISTS];
    bool open[LISTS];
    int64_t held[LISTS];
    uint32_t written[LISTS][POSITIONS];
    uint32_t memory[PAGES][PAGE_SIZE];
    uint32_t random, next_value;
} world;

static uint32_t draw(world *w, uint32_t below)
{
    w->random = w->random * 1664525u + 1013904223u;
    return (w->random >> 8) % below;
}

static void check(const world *w)
{
    int32_t holders[PAGES] = {0};
    int64_t used = 0;
    for (int i = 0; i < LISTS; i++) {
        if (!w->open[i]) continue;
        for (int64_t p = 0; p < w->lists[i].count; p++)
            holders[w->lists[i].pages[p]]++;
        for (int64_t p = 0; p < w->held[i]; p++)
            assert_int_equal(w->memory[w->lists[i].pages[p / PAGE_SIZE]][p % PAGE_SIZE],
                             w->written[i][p]);
    }
    for (int p = 0; p < PAGES; p++) {
        assert_int_equal(w->pool.references[p], holders[p]);
        used += holders[p] > 0;
    }
    assert_int_equal(w->pool.n_free, PAGES - used);
    for (int64_t p = 0; p < w->pool.n_free; p++)
        assert_int_equal(holders[w->pool.free[p]], 0);
}

static void grow(world *w, int i)
{
    page_list *list = &w->lists[i];
    int64_t positions = w->held[i] + draw(w, 12);
    page_copy copy;
    if (positions > POSITIONS) positions = POSITIONS;
    const int64_t need = page_list_need(list, &w->pool, w->held[i], positions);
    const int64_t free_before = w->pool.n_free, count_before = list->count;
    qp_status status = page_list_grow(list, &w->pool, w->held[i], positions, &copy, &error);
    if (need > free_before) {
        assert_int_equal(status, QP_NO_MEMORY);
        assert_int_equal(list->count, count_before);
        assert_int_equal(w->pool.n_free, free_before);
        assert_non_null(strstr(error.message, "more are needed"));
        return;
    }
    assert_ok(status);
    /* The page that is left may go back to the pool when its other holders have gone. */
    assert_int_equal(w->pool.n_free, free_before - need);
    if (copy.needed) memcpy(w->memory[copy.to], w->memory[copy.from], sizeof w->memory[0]);
    for (int64_t p = w->held[i]; p < positions; p++) {
        int32_t page = list->pages[p / PAGE_SIZE];
        assert_int_equal(w->pool.references[page], 1); /* nothing is written to a shared page */
        w->memory[page][p % PAGE_SIZE] = w->written[i][p] = ++w->next_value;
    }
    w->held[i] = positions;
}

static void fork_list(world *w, int i)
{
    int to = (int)draw(w, LISTS);
    if (w->open[to]) return;
    assert_ok(page_list_init(&w->lists[to], POSITIONS / PAGE_SIZE, &error));
    w->open[to] = true;
    page_list_share(&w->lists[to], &w->lists[i], &w->pool, w->held[i]);
    w->held[to] = w->held[i];
    memcpy(w->written[to], w->written[i], sizeof w->written[i]);
}

static void act(world *w)
{
    const int i = (int)draw(w, LISTS);
    if (!w->open[i]) {
        if (draw(w, 4)) return;
        assert_ok(page_list_init(&w->lists[i], POSITIONS / PAGE_SIZE, &error));
        w->open[i] = true;
        w->held[i] = 0;
        return;
    }
    switch (draw(w, 8)) {
    case 0:
        page_list_free(&w->lists[i], &w->pool);
        w->open[i] = false;
        break;
    case 1:
        w->held[i] = draw(w, (uint32_t)w->held[i] + 1);
        page_list_shrink(&w->lists[i], &w->pool, w->held[i]);
        break;
    case 2:
    case 3:
        fork_list(w, i);
        break;
    default:
        grow(w, i);
    }
}

static void sequences_read_what_they_wrote(void **state)
{
    (void)state;
    static world w;
    for (uint32_t seed = 1; seed <= 3; seed++) {
        w = (world){.random = seed};
        assert_ok(page_pool_init(&w.pool, PAGES, PAGE_SIZE, &error));
        for (int event = 0; event < EVENTS; event++) {
            act(&w);
            check(&w);
        }
        for (int i = 0; i < LISTS; i++)
            if (w.open[i]) page_list_free(&w.lists[i], &w.pool);
        assert_int_equal(w.pool.n_free, PAGES);
        page_pool_free(&w.pool);
    }
}

/* Two sequences at full length that share all but one page fit where two apart fit. */
static void a_full_pool_can_always_copy(void **state)
{
    (void)state;
    page_pool pool;
    page_list a, b;
    page_copy copy;
    assert_ok(page_pool_init(&pool, 4, PAGE_SIZE, &error));
    assert_ok(page_list_init(&a, 2, &error));
    assert_ok(page_list_init(&b, 2, &error));
    assert_ok(page_list_grow(&a, &pool, 0, 6, &copy, &error));
    page_list_share(&b, &a, &pool, 6);
    assert_int_equal(pool.n_free, 2);
    assert_ok(page_list_grow(&a, &pool, 6, 8, &copy, &error));
    assert_true(copy.needed);
    assert_int_equal(b.pages[1], copy.from);
    assert_int_equal(a.pages[1], copy.to);
    assert_ok(page_list_grow(&b, &pool, 6, 8, &copy, &error));
    assert_false(copy.needed); /* it is alone by now */
    assert_int_equal(pool.n_free, 1);
    page_list_free(&a, &pool);
    page_list_free(&b, &pool);
    page_pool_free(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_read_what_they_wrote),
        cmocka_unit_test(a_full_pool_can_always_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
