from django.contrib import admin

from tracker.models import Comment, Issue


class CommentInline(admin.TabularInline):
    model = Comment
    extra = 1


@admin.register(Issue)
class IssueAdmin(admin.ModelAdmin):
    fields = ["title", "state", "is_epic", "estimate", "due", "labels", "assignees"]
    inlines = [CommentInline]
