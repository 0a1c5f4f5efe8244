from django.conf import settings
from django.db import models


class Issue(models.Model):
    title = models.CharField(max_length=100)
    state = models.CharField(max_length=20, default="open")
    is_epic = models.BooleanField(default=False)
    estimate = models.DecimalField(max_digits=8, decimal_places=2, null=True, blank=True)
    due = models.DateTimeField(null=True, blank=True)
    labels = models.JSONField(default=list, blank=True)
    description = models.TextField(blank=True)
    sort_order = models.FloatField(default=0)
    updated_at = models.DateTimeField(auto_now=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    assignees = models.ManyToManyField(settings.AUTH_USER_MODEL, blank=True)

    def __str__(self):
        return self.title


class Comment(models.Model):
    issue = models.ForeignKey(Issue, on_delete=models.CASCADE, related_name="comments")
    body = models.TextField()

    def __str__(self):
        return self.body
